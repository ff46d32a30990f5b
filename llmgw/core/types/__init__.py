"""The frozen values of the core, one file a conversation: catalog, messages, routes, state, plan, node.

Import from the file that holds the value; nothing is re-exported, so every name has one address.
"""
