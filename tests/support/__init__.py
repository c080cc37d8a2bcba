"""What tests share: the virtual loop, simulated disks, real servers on loopback."""
