"""The commands, one file a group, and the only printer of errors.

Every module imports what its command needs inside the command: ``pinscope --help`` answers at once.
"""
