"""What turns the notebooks into the web site: `make site`."""
