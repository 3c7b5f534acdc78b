"""What only lesson 14 uses."""
