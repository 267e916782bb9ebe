# SPDX-License-Identifier: Apache-2.0
"""Inference engines: address maps of their live weights, and receivers that patch them.

trace            finds the address map of a model, by watching the engine's own loader
refresh          brings up to date what cannot be patched in place
receiver, ...    the modules of this package itself: what the engines have in common
vllm, sglang     one engine each; neither imports the other
"""
