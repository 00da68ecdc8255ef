"""Eight GPUs, on one machine or under SLURM: a larger batch, bf16, and a learning rate scaled to the batch.

For:      projects of thousands of labelled frames. The batch size is the total over all devices, in 16 shards of 8
          frames, so this config gives the same run on 1, 4, 8 or 16 GPUs of one kind (bit for bit with
          mesh.deterministic). A GPU computes 8 frames at once.
Reached:  not measured.
Cost:     not measured; --dry_run shows the memory and the FLOPs of a step.
Command:  jaxpose train PROJECT_FOLDER --config configs/gpus.py                 (one machine)
          sbatch launch/slurm.sbatch PROJECT_FOLDER --config configs/gpus.py    (SLURM)
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project, input_height_px=256, input_width_px=256),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(backbone="resnet50"),
        # The learning rate is optim.lr times sqrt(128 / 16); it rises to that over the first 100 steps.
        optim=c.OptimConfig(lr=1e-3, lr_scale="sqrt", lr_reference_batch=16, warmup_steps=100),
        train=c.TrainConfig(batch_size=128, precision="bf16"),
    )
