"""The three values of a keypoint's visibility: in label files, in batches and in the losses."""

NOT_USED = 0  # no label: costs nothing
NOT_VISIBLE = 1  # labelled as not visible: a uniform target
VISIBLE = 2
