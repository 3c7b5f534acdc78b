"""Starting, ending and reporting: what a lab, an exercise or a notebook needs to run at all."""
