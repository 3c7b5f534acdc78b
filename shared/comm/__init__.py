"""What travels between ranks: sending it, slowing it down, and counting it in two independent ways."""
