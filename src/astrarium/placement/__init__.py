"""Placement says where models go: problems in, plans out. Policies are in `policies/`, one file each."""
