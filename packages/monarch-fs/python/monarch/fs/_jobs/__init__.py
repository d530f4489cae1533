"""What a job carries of this wheel."""
