"""Accuracy: what was published, what parsim predicts for it, what was fitted, and without which rows.

A kind of measurement has its rows and their descriptions in a folder of the repository's `validation/`, and two things here:

- rows (`published_runs`, `published_collectives`, `published_kernels`, `published_utilisation`, `peaks`), read by the functions of
  `published`: every row names its source, says how its figure was read where that is not plain, and is left out of the scores only by
  a reason written beside the rows
- predictions of the rows (`predicted_runs`, `predicted_collectives`, `predicted_kernels`, `peaks`), scored by `score.errors`, and the
  comparison as text and as one JSON document

`kernel_fit` refits the parameters of devices to the kernels; parameters fitted to training runs stand in `validation/runs/fits.yaml`.

To add a kind: a dataclass on `published.Published` with a function that makes it of the cells of a CSV row, a class with the row, its
prediction and their `score.relative_error`, `text` and `document`, and a command in `parsim/commands/validate.py`.
"""
