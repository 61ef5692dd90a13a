"""What every bridge is built from; it knows no bridge."""
