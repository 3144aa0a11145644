"""What NVML reports of the devices, and the lock file of each device."""
