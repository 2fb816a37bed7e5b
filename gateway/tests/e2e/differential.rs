//! The differential table: kubectl, what helm's client sends, and curl cannot tell the tunnel from the cluster.
//!
//! Each row of `differential/tables/*.sh` is a command as a user types it. It runs straight at the cluster and through
//! kas and agentk; output, errors, exit code and, for HTTP, every header must be the same. What may differ between the
//! headers is the table in `docs/protocol.md`, and nothing else. `make differential` prints the counts.

mod answer;
mod group;
mod headers;
mod normal;
mod report;
mod side;
mod table;

use self::group::{Group, Kind};

#[test]
fn differential_reading() {
    Group { name: "reading", kind: Kind::Shared, table: include_str!("differential/tables/reading.sh") }
        .run();
}

#[test]
fn differential_changing() {
    Group { name: "changing", kind: Kind::Twin, table: include_str!("differential/tables/changing.sh") }
        .run();
}

#[test]
fn differential_workloads() {
    Group { name: "workloads", kind: Kind::Twin, table: include_str!("differential/tables/workloads.sh") }
        .run();
}

#[test]
fn differential_streams() {
    Group { name: "streams", kind: Kind::Shared, table: include_str!("differential/tables/streams.sh") }
        .run();
}

#[test]
fn differential_helm() {
    Group { name: "helm", kind: Kind::Twin, table: include_str!("differential/tables/helm.sh") }.run();
}

#[test]
fn differential_http_reading() {
    Group {
        name: "http-reading",
        kind: Kind::Shared,
        table: include_str!("differential/tables/http-reading.sh"),
    }
    .run();
}

#[test]
fn differential_http_changing() {
    Group {
        name: "http-changing",
        kind: Kind::Twin,
        table: include_str!("differential/tables/http-changing.sh"),
    }
    .run();
}
