"""`parsim ui`: a page in the browser, served to this machine alone. It asks `parsim.study.planner` and knows nothing itself."""
