// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks symbols that the shared library exports; all others are hidden.
#if defined(SPARSECAST_STATIC)
#define SPARSECAST_API
#elif defined(SPARSECAST_BUILDING)
#define SPARSECAST_API __attribute__((visibility("default")))
#else
#define SPARSECAST_API
#endif
