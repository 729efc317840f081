"""Printed crates for Burn: their structure, and their speed beside other code for the same files."""
