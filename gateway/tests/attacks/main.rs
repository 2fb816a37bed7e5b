//! Callers, agents, servers and a kas that attack: the whole product in one process, over in-memory pipes and on a paused
//! clock, except where agentk dials.
//!
//! Each test has the number of what it tries. Memory stays bounded, the attacker is cut off or held back, and whoever did
//! no harm is still served.
//!
//! | | HTTP/2 | | HTTP/1.1 |
//! |---|---|---|---|
//! | 01 | rapid reset (CVE-2023-44487) | 13 | a head that trickles in |
//! | 02 | resets that the other end provokes (RUSTSEC-2024-0003) | 14 | a body that stops coming |
//! | 03 | CONTINUATION without end (CVE-2024-27316) | 15 | answers that nobody reads |
//! | 04 | HPACK bombs (CVE-2016-6581) | 16 | request smuggling |
//! | 05 | floods of tiny DATA (CVE-2019-9518) | 17 | bytes behind an upgrade (CVE-2018-1002105, RUSTSEC-2026-0033) |
//! | 06 | floods of control frames (CVE-2019-9512, -9515) | 18 | large heads |
//! | 07 | windows that do not open (CVE-2019-9511) | 19 | `Connection` names a header (CVE-2021-31999) |
//! | 08 | GOAWAY, the last stream ids (CVE-2021-39162) | 20 | twins with `_` (CVE-2025-64484) |
//! | 09 | more streams than allowed | 21 | paths that can be read in two ways |
//! | 10 | connections that are only begun | 22 | `Expect: 100-continue` |
//! | 11 | HTTP/2 by upgrade | 23 | floods of 1xx |
//! | 12 | pseudo-headers and malformed heads | 24 | trailers |
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod answers;
mod browser;
mod cluster;
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
mod revocation;
#[path = "../scenarios/server.rs"]
#[allow(dead_code, reason = "each binary uses its own part")]
mod server;
mod streams;
mod tunnel_ends;
mod two_agents;
mod upgrades;
mod upstream;
#[path = "../scenarios/world.rs"]
#[allow(dead_code, reason = "each binary uses its own part")]
mod world;
