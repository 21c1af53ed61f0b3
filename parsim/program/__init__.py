"""What each rank executes: ops, the program with its text form and checks, lowering."""
