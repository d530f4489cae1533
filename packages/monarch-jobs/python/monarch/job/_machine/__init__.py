"""What jobs run outside of Monarch: commands here and over ssh, and processes of this machine that outlive their starter."""
