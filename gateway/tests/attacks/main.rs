//! Callers, agents, servers and a kas that attack: the whole product in one process, over in-memory pipes and on a paused
//! clock, except where agentk dials.
//!
//! Each test has the number of what it tries, in the list below. Memory stays bounded, the attacker is cut off or held back, and whoever did
//! no harm is still served.
//!
//! | | What | Where, if not here as `attack_NN_…` |
//! |---|---|---|
//! | | *HTTP/2 of callers and in tunnels* | |
//! | 01 | rapid reset (CVE-2023-44487) | |
//! | 02 | resets that the other end provokes (RUSTSEC-2024-0003) | |
//! | 03 | CONTINUATION without end (CVE-2024-27316) | |
//! | 04 | HPACK bombs (CVE-2016-6581) | |
//! | 05 | floods of tiny DATA (CVE-2019-9518) | |
//! | 06 | floods of control frames (CVE-2019-9512, -9515) | |
//! | 07 | windows that do not open (CVE-2019-9511) | |
//! | 08 | GOAWAY, the last stream ids (CVE-2021-39162) | |
//! | 09 | more streams than allowed | |
//! | 10 | connections that are only begun | |
//! | 11 | HTTP/2 by upgrade | |
//! | 12 | pseudo-headers and malformed heads | |
//! | | *HTTP/1.1 of callers* | |
//! | 13 | a head that trickles in | |
//! | 14 | a body that stops coming | |
//! | 15 | answers that nobody reads | |
//! | 16 | request smuggling | |
//! | 17 | bytes behind an upgrade (CVE-2018-1002105, RUSTSEC-2026-0033) | |
//! | 18 | large heads | |
//! | 19 | `Connection` names a header (CVE-2021-31999) | |
//! | 20 | twins with `_` (CVE-2025-64484) | |
//! | 21 | paths that can be read in two ways | |
//! | 22 | `Expect: 100-continue` | |
//! | 23 | floods of 1xx | |
//! | 24 | trailers | |
//! | | *Upgrades and streams* | |
//! | 25 | upgrades that are refused (CVE-2018-1002105) | besides: agent/src/upstream/tests/upgrade.rs |
//! | 26 | upgrades that are redirected (CVE-2020-8559) | |
//! | 27 | half-close, ends, all bytes of an exec | with kubectl: e2e/upgrades.rs, e2e/terminals.rs |
//! | 28 | callers who vanish in an exec | |
//! | 29 | watches whose agent dies or reconnects | through drains: scenarios/watches.rs |
//! | 30 | readers of logs who stop reading | |
//! | | *Identity* | |
//! | 31 | `Impersonate-*`, and other credentials of a caller's | |
//! | 32 | malformed, double, misplaced credentials | |
//! | 33 | agents who want to be another, tokens at the wrong door | |
//! | 34 | revoked tokens | |
//! | 35 | rights that are taken away, unusable identity files, herds | |
//! | 36 | comparison in constant time | by the structure of the code, not by a clock |
//! | 37 | JWT | in api.rs |
//! | 38 | web pages: CORS, preflight, WebSocket, CSRF | |
//! | | *Hostile agents* | |
//! | 39 | response headers, trailers, failures that are not an agent's to say | |
//! | 40 | answers that a browser would run | |
//! | 41 | broken frames, windows, lengths, order | statuses and bad bytes: attack_12 of http2_tunnel.rs |
//! | 42 | floods of handshakes, hellos, control frames | there are no events and no statuses to flood with |
//! | 43 | agents that never answer | |
//! | 44 | a thousand idle tunnels | ten thousand take more files than a test should |
//! | 45 | forged trees of objects | none: nothing here reads objects, bodies pass unread |
//! | | *Targets* | |
//! | 46 | requests and Services that choose a server | Services: agent/tests/prometheus.rs; redirects: scenarios/prometheus.rs |
//! | 47 | Git URLs | none: nothing here fetches from Git |
//! | 48 | the ends' own endpoints (CVE-2024-40632) | those of Prometheus: scenarios/prometheus.rs |
//! | | *Other replicas, in private.rs as `private_…`* | |
//! | | strangers at the private listener; forged, expired, misaddressed, replayed seals | answers that are not proved: scenarios/peers_trouble.rs |
//! | | *Prometheus, in scenarios/prometheus.rs where no file is named* | |
//! | 67 | GET and POST are equal | `what_may_be_asked_by_get_may_be_asked_by_post`; e2e/prometheus.rs |
//! | | a query in body and URL | `what_is_posted_arrives_untouched`; e2e/prometheus.rs `forms_may_be_posted` |
//! | | an evaluation of 2 minutes | `an_evaluation_of_two_minutes_is_waited_for` |
//! | | large JSON with flat memory | e2e/large_answers.rs `an_answer_of_300_mib_is_streamed_with_flat_memory` |
//! | | gzip byte for byte | `compressed_answers_pass_byte_for_byte` |
//! | | a caller's leaving reaches Prometheus | `a_caller_who_leaves_closes_the_connection_to_prometheus` |
//! | | a snappy bomb | here: `attack_67_a_compressed_bomb_stays_packed_in_both_directions` |
//! | | SSE and NDJSON flush | `each_event_arrives_before_the_next_is_sent` |
//! | | denied endpoints | `what_is_not_for_callers_reaches_prometheus_in_no_spelling` |
//! | | Grafana's save-and-test | e2e/grafana.rs `save_and_test` |
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod answers;
mod api;
mod browser;
mod cluster;
#[path = "../scenarios/fleet.rs"]
#[allow(dead_code, reason = "each binary uses its own part")]
mod fleet;
mod hostile_agent;
mod http1;
mod http1_front;
mod http1_headers;
mod http2;
mod http2_front;
mod http2_stall;
mod http2_tunnel;
mod identity;
mod logs;
mod memory;
mod private;
#[path = "../scenarios/api.rs"]
#[allow(dead_code, reason = "each binary uses its own part")]
mod programs;
mod prometheus;
mod revocation;
#[path = "../scenarios/server.rs"]
#[allow(dead_code, reason = "each binary uses its own part")]
mod server;
mod streams;
mod targets;
mod tunnel_ends;
mod two_agents;
mod upgrades;
mod upstream;
#[path = "../scenarios/world.rs"]
#[allow(dead_code, reason = "each binary uses its own part")]
mod world;
