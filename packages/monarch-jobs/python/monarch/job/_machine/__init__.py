"""Programs outside of Monarch: commands on this machine and over ssh, and processes of this machine that outlive their starter."""
