"""What the tests of every mount need: agents behind a door, and short ways to mount them and to watch."""
