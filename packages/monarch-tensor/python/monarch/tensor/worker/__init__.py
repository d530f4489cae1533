"""What runs on the ranks of an activated mesh."""
