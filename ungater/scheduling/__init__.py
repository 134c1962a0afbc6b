"""The admission cycle, and new places for slots whose nodes are lost."""
