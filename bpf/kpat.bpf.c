// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The kernel side of kpat, one object: maps and configuration (config.bpf.h), rings (ring.bpf.h), tasks (tasks.bpf.h), packets
 * (packets.bpf.h, identity.bpf.h, again.bpf.h, footprint.bpf.h), calls (calls.bpf.h), programs (functions.bpf.h, entries.bpf.h, points.bpf.h). Compiled twice, with and without
 * KPAT_DIRECT (see kernel.h).
 */
#include "entries.bpf.h"
#include "points.bpf.h"
#include "application.h"
#include "samples.h"
#include "work.h"
#include "hook.h"
#include "radio.h"

/* Keeps the record types in the object's BTF, from which the Rust types are generated. */
struct kp_call _kp_call SEC(".data.types") = {};
struct kp_point _kp_point SEC(".data.types") = {};
struct kp_member _kp_member SEC(".data.types") = {};
struct kp_lineage _kp_lineage SEC(".data.types") = {};
struct kp_process _kp_process SEC(".data.types") = {};
struct kp_event _kp_event SEC(".data.types") = {};
struct kp_footprint _kp_footprint SEC(".data.types") = {};
struct kp_place _kp_place SEC(".data.types") = {};
struct kp_pause _kp_pause SEC(".data.types") = {};
struct kp_crossing _kp_crossing SEC(".data.types") = {};
struct kp_socket _kp_socket SEC(".data.types") = {};
struct kp_tcp _kp_tcp SEC(".data.types") = {};
struct kp_gap _kp_gap SEC(".data.types") = {};
struct kp_thread_time _kp_thread_time SEC(".data.types") = {};
struct kp_sample _kp_sample SEC(".data.types") = {};
struct kp_stack _kp_stack SEC(".data.types") = {};
struct kp_announcement _kp_announcement SEC(".data.types") = {};
struct kp_argument _kp_argument SEC(".data.types") = {};
struct kp_hook _kp_hook SEC(".data.types") = {};
struct kp_rate _kp_rate SEC(".data.types") = {};
struct kp_program _kp_program SEC(".data.types") = {};
struct kp_radio_point _kp_radio_point SEC(".data.types") = {};
struct kp_radio _kp_radio SEC(".data.types") = {};
struct kp_carrier _kp_carrier SEC(".data.types") = {};
struct kp_frame _kp_frame SEC(".data.types") = {};
enum kp_kind _kp_kind SEC(".data.types") = KP_NONE;
enum kp_crossing_kind _kp_crossing_kind SEC(".data.types") = KP_X_ASK;
enum kp_loss _kp_loss SEC(".data.types") = KP_LOSS_RING_FULL;
enum kp_event_kind _kp_event_kind SEC(".data.types") = KP_EV_DROP;
enum kp_lineage_kind _kp_lineage_kind SEC(".data.types") = KP_LIN_CLONE;
enum kp_sleep _kp_sleep SEC(".data.types") = KP_SLEEP_STOPPED;
struct kp_work_key _kp_work_key SEC(".data.types") = {};
struct kp_work _kp_work SEC(".data.types") = {};
struct kp_use_key _kp_use_key SEC(".data.types") = {};
struct kp_rule _kp_rule SEC(".data.types") = {};
struct kp_use _kp_use SEC(".data.types") = {};
struct kp_peer _kp_peer SEC(".data.types") = {};
struct kp_account_head _kp_account_head SEC(".data.types") = {};
enum kp_work_kind _kp_work_kind SEC(".data.types") = KP_WORK_USER;
enum kp_purpose _kp_purpose SEC(".data.types") = KP_FOR_ITSELF;
enum kp_use_kind _kp_use_kind SEC(".data.types") = KP_USE_READ;
enum kp_rule_kind _kp_rule_kind SEC(".data.types") = KP_RULE_COMM;
enum kp_argument_from _kp_argument_from SEC(".data.types") = KP_ARG_NONE;
enum kp_argument_flag _kp_argument_flag SEC(".data.types") = KP_ARG_SIGNED;
enum kp_call_side _kp_call_side SEC(".data.types") = KP_CALL_NONE;
struct kp_ring_ctl _kp_ring_ctl SEC(".data.types") = {};

char LICENSE[] SEC("license") = "GPL";
