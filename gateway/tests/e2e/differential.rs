//! The differential tables: commands of kubectl, curl and helm have the same result with and without the tunnel.
//!
//! Each row of `differential/tables/*.sh` is a command as a user types it. It runs directly at the cluster and through
//! kas and agentk; output, errors, exit code and, for HTTP, every header must be the same. Only the headers in
//! the table of `docs/protocol.md` may differ. `make differential` prints the counts.

mod compare;
mod group;
mod headers;
mod report;
mod result;
mod side;
mod table;

use self::group::{Group, GroupKind};

#[test]
fn differential_reading() {
    Group { name: "reading", kind: GroupKind::Shared, table: include_str!("differential/tables/reading.sh") }
        .run();
}

#[test]
fn differential_changing() {
    Group { name: "changing", kind: GroupKind::Twin, table: include_str!("differential/tables/changing.sh") }
        .run();
}

#[test]
fn differential_workloads() {
    Group {
        name: "workloads",
        kind: GroupKind::Twin,
        table: include_str!("differential/tables/workloads.sh"),
    }
    .run();
}

#[test]
fn differential_streams() {
    Group { name: "streams", kind: GroupKind::Shared, table: include_str!("differential/tables/streams.sh") }
        .run();
}

#[test]
fn differential_helm() {
    Group { name: "helm", kind: GroupKind::Twin, table: include_str!("differential/tables/helm.sh") }.run();
}

#[test]
fn differential_http_reading() {
    Group {
        name: "http-reading",
        kind: GroupKind::Shared,
        table: include_str!("differential/tables/http-reading.sh"),
    }
    .run();
}

#[test]
fn differential_http_changing() {
    Group {
        name: "http-changing",
        kind: GroupKind::Twin,
        table: include_str!("differential/tables/http-changing.sh"),
    }
    .run();
}
