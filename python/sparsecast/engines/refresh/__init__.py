# SPDX-License-Identifier: Apache-2.0
"""Tensors that an update cannot patch where they lie: computed from weights (`recompute`), repacked after loading
(`repacked`), or loaded again NaN-masked (`masked_reload`).
"""
