/* SPDX-License-Identifier: Apache-2.0 */
/** Everything: the cache (cache.h), pools and schemas, copies of states, kernels. Each header can
 * be included alone. */
#ifndef STATECACHE_STATECACHE_H
#define STATECACHE_STATECACHE_H

#include "statecache/cache.h"
#include "statecache/events.h"
#include "statecache/inspect.h"
#include "statecache/kernels.h"
#include "statecache/kernels_choice.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_linear.h"
#include "statecache/kernels_move.h"
#include "statecache/kernels_project.h"
#include "statecache/kernels_replay.h"
#include "statecache/kernels_ssm.h"
#include "statecache/kernels_stage.h"
#include "statecache/mark.h"
#include "statecache/pool.h"
#include "statecache/schema.h"
#include "statecache/snapshot.h"
#include "statecache/status.h"

#endif
