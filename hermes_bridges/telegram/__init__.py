"""The controller: installs the skills for a gateway, and turns the coms bridge on and off."""
