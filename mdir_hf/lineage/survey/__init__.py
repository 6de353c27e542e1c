"""Every pair of many models: each model is read once, each pair is compared once, and a stopped survey goes on."""
