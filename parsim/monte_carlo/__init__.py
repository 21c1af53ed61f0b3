"""Many runs of one disturbed step: which are asked for, when they are enough, and what becomes of them."""
