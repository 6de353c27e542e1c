"""Compare every pair of many models; each is read once, and a stopped survey resumes."""
