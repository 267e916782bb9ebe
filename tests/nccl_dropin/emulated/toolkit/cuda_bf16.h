// SPDX-License-Identifier: Apache-2.0
#pragma once

// nccl.h includes this header, but uses nothing of it.
