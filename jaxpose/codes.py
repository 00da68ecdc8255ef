"""Values that several rooms read from batches and tables: the visibility of a keypoint and the set of a frame."""

# Not in the loss; in the loss, with a uniform target; in the loss, with a target at its position.
NOT_USED, NOT_VISIBLE, VISIBLE = 0, 1, 2

TRAIN, VALIDATION, TEST, UNUSED = SETS = ("train", "validation", "test", "unused")
