"""MobileNetV2 of the paper's table in torch, by torchvision's names of tensors."""

import torch


class TorchBlock(torch.nn.Module):
    """An inverted residual of the paper's figure 4, by torchvision's names."""

    def __init__(self, channels: int, out: int, expansion: int, stride: int):
        super().__init__()
        inside = channels * expansion
        layers = [_torch_layers(channels, inside, 1)] if expansion > 1 else []
        layers += [_torch_layers(inside, inside, 3, stride, inside), torch.nn.Conv2d(inside, out, 1, bias=False)]
        self.conv = torch.nn.Sequential(*layers, torch.nn.BatchNorm2d(out))
        self.has_shortcut = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


def _torch_layers(channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> torch.nn.Sequential:
    conv = torch.nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False)
    return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(out), torch.nn.ReLU6())


def torch_network(first: int, stages: list[tuple[int, int, int, int]], last: int) -> torch.nn.Module:
    """The paper's table 2 (expansion, channels, blocks, stride) with these channels, and a classifier."""
    layers: list[torch.nn.Module] = [_torch_layers(3, first, 3, 2)]
    channels = first
    for expansion, out, count, stride in stages:
        for number in range(count):
            layers.append(TorchBlock(channels, out, expansion, 1 if number else stride))
            channels = out
    network = torch.nn.Module()
    network.features = torch.nn.Sequential(*layers, _torch_layers(channels, last, 1))
    network.classifier = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(last, 5))
    return network.eval()


def published_network() -> torch.nn.Module:
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    return torch_network(32, stages, 1280)


def narrow_network() -> torch.nn.Module:
    """Of a quarter of the channels, in multiples of 8 and not below 0.9 of a quarter, with random norms."""
    stages = [(1, 8, 1, 1), (6, 8, 2, 2), (6, 8, 3, 2), (6, 16, 4, 2), (6, 24, 3, 1), (6, 40, 3, 2), (6, 80, 1, 1)]
    torch.manual_seed(0)
    network = torch_network(8, stages, 1280)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5), (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.2, 0.5),
            ):  # fmt: skip
                assert tensor is not None
                tensor.data.uniform_(low, high)
    return network
