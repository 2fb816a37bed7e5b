use proto::events::{EventKind, NewAgentEvent, Severity};

use super::*;
use crate::{
    alert::{Destination, Verdict},
    policy::{Direction, PolicyRef},
};

const QUIET: Duration = Duration::from_secs(600);

fn at(milliseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) + Duration::from_millis(milliseconds)
}

fn key(source: &str, port: u16) -> AlertKey {
    let peer = |name: &str| Peer {
        namespace: "shop".to_owned(),
        kind: "Deployment".to_owned(),
        name: name.to_owned(),
    };
    AlertKey {
        verdict: Verdict::Dropped,
        direction: Some(Direction::Egress),
        namespace: "shop".to_owned(),
        source: peer(source),
        destination: Destination { peer: peer("db"), port, protocol: "TCP" },
        policy: PolicyRef { namespace: "shop".to_owned(), name: "deny".to_owned() },
        reason: "not-allowed".to_owned(),
    }
}

fn observe(table: &mut AlertTable, key: AlertKey, now: u64) -> Observed {
    table.observe(key, String::new(), Some(at(now)), at(now))
}

fn states(reports: &[AlertReport]) -> Vec<(AlertState, u64)> {
    reports.iter().map(|report| (report.state, report.alert.count)).collect()
}

#[test]
fn first_drop_is_reported_at_once_and_the_end_with_the_count() {
    let mut table = AlertTable::new(QUIET);
    assert_eq!(observe(&mut table, key("web", 443), 0), Observed::Opened);
    assert_eq!(states(&table.reports(at(0), true)), [(AlertState::Opened, 1)]);
    for milliseconds in 1..1000 {
        assert_eq!(observe(&mut table, key("web", 443), milliseconds), Observed::Counted);
        assert!(table.reports(at(milliseconds), true).is_empty());
    }
    assert!(table.reports(at(999 + 599_999), true).is_empty());
    let closed = table.reports(at(999 + 600_000), true);
    assert_eq!(states(&closed), [(AlertState::Closed, 1000)]);
    assert_eq!((closed[0].alert.first, closed[0].alert.last), (at(0), at(999)));
    assert!(table.is_empty() && table.sources.is_empty());
    assert_eq!(observe(&mut table, key("web", 443), 1_000_000), Observed::Opened, "it begins again");
}

#[test]
fn alert_that_goes_on_is_reported_each_quarter_of_an_hour() {
    let mut table = AlertTable::new(QUIET);
    let mut reports = Vec::new();
    for minute in 0..=60 {
        observe(&mut table, key("web", 443), minute * 60_000);
        reports.extend(table.reports(at(minute * 60_000), true));
    }
    let ongoing = |count| (AlertState::Ongoing, count);
    assert_eq!(
        states(&reports),
        [(AlertState::Opened, 1), ongoing(16), ongoing(31), ongoing(46), ongoing(61)]
    );
}

/// The property of the issue: 10,000 drops per second for a minute, by hostile workloads that vary all they can.
#[test]
fn flood_becomes_few_reports_and_no_drop_is_uncounted() {
    const PER_SECOND: u64 = 10_000;
    for (sources, seconds) in [(1, 5), (500, 5), (100_000, 15)] {
        let mut table = AlertTable::new(QUIET);
        let mut reports = Vec::new();
        for number in 0..seconds * PER_SECOND {
            let now = number * 1000 / PER_SECOND;
            let port = u16::try_from(number % 60_000).unwrap();
            observe(&mut table, key(&(number % sources).to_string(), port), now);
            if number % 1000 == 0 {
                reports.extend(table.reports(at(now), true));
                assert!(table.len() <= MAX_OPEN + 1);
            }
        }
        assert!(reports.len() <= 50 + 60, "{sources} sources: {} reports", reports.len());
        assert_eq!(table.open().iter().map(|alert| alert.count).sum::<u64>(), seconds * PER_SECOND);
        // All of it ends.
        let mut closed = 0;
        for second in 700..700 + 1200 {
            let ended = table.reports(at(second * 1000), true);
            assert!(ended.iter().all(|report| report.state == AlertState::Closed));
            closed += ended.iter().map(|report| report.alert.count).sum::<u64>();
        }
        assert_eq!((closed, table.len()), (seconds * PER_SECOND, 0), "{sources} sources");
    }
}

#[test]
fn scan_of_ports_does_not_hide_other_alerts() {
    let mut table = AlertTable::new(QUIET);
    for port in 1..=5000 {
        observe(&mut table, key("scanner", port), 0);
    }
    assert_eq!(table.len(), MAX_PER_SOURCE + 1);
    assert_eq!(observe(&mut table, key("web", 443), 1), Observed::Opened);
    assert_eq!(observe(&mut table, key("scanner", 6000), 1), Observed::Folded);
    let folded = table.open().into_iter().find(|alert| alert.count > 1).unwrap();
    assert_eq!(folded.destination.to_string(), "many destinations");
}

#[test]
fn too_many_sources_are_one_alert() {
    let mut table = AlertTable::new(QUIET);
    for number in 0..MAX_OPEN {
        assert_eq!(observe(&mut table, key(&number.to_string(), 1), 0), Observed::Opened);
    }
    for number in 0..10 {
        assert_eq!(observe(&mut table, key(&format!("late-{number}"), 1), 0), Observed::Overflow);
    }
    assert_eq!(table.len(), MAX_OPEN + 1);
    let overflow = table.open().into_iter().find(|alert| alert.reason == "too-many-alerts").unwrap();
    assert_eq!(overflow.count, 10);
}

#[test]
fn pod_that_does_not_lead_reports_nothing_and_takes_over_without_repeats() {
    let mut table = AlertTable::new(QUIET);
    observe(&mut table, key("web", 443), 0);
    assert!(table.reports(at(59_000), false).is_empty());
    observe(&mut table, key("web", 80), 59_500);
    assert!(table.reports(at(60_000), false).is_empty());
    // The leader is gone.
    let reports = table.reports(at(61_000), true);
    assert_eq!(reports.len(), 1, "the leader before has reported the older one: {reports:?}");
    assert_eq!(reports[0].alert.destination.port, 80);
    // It may have reported this one, too: both events have the same key.
    let mut leader = AlertTable::new(QUIET);
    observe(&mut leader, key("web", 80), 59_500);
    let keys = [reports[0].clone(), leader.reports(at(59_600), true).remove(0)];
    let [one, other] = keys.map(|report| NewAgentEvent::from(report).key);
    assert_eq!(one, other);
    table.reports(at(2_000_000), false);
    assert!(table.is_empty(), "it closes alerts silently");
}

#[test]
fn pods_that_have_counted_differently_report_the_same_event() {
    let keys = |offset: u64, extra: usize| {
        let (mut table, mut keys) = (AlertTable::new(QUIET), Vec::new());
        // Both pods see the same first flow, by the clock of its node.
        table.observe(key("web", 443), String::new(), Some(at(0)), at(offset));
        for minute in 0..=60 {
            let now = minute * 60_000 + offset;
            for _ in 0..extra {
                observe(&mut table, key("web", 443), now);
            }
            keys.extend(
                table.reports(at(now), true).into_iter().map(|report| NewAgentEvent::from(report).key),
            );
        }
        keys
    };
    let (one, other) = (keys(0, 1), keys(3_000, 7));
    assert_eq!(one.len(), 5, "opened, and four times ongoing");
    assert_eq!(one, other);
    assert_eq!(one.iter().collect::<std::collections::BTreeSet<_>>().len(), 5);
}

#[test]
fn times_of_a_hostile_node_are_not_believed() {
    let mut table = AlertTable::new(QUIET);
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 50);
    for time in [None, Some(SystemTime::UNIX_EPOCH), Some(far)] {
        table.observe(key("web", 443), String::new(), time, at(7));
    }
    let alert = &table.open()[0];
    assert_eq!((alert.first, alert.last, alert.count), (at(7), at(7), 3));
}

#[test]
fn report_is_an_event_with_the_facts() {
    let mut table = AlertTable::new(QUIET);
    observe(&mut table, key("web", 443), 0);
    let event = NewAgentEvent::from(table.reports(at(0), true).remove(0)).bounded();
    let content = &event.content;
    assert_eq!((content.kind, content.severity), (EventKind::Alert, Severity::Warning));
    assert_eq!(
        content.message,
        "the policy shop/deny drops traffic from shop/Deployment/web to shop/Deployment/db (443/TCP)"
    );
    assert_eq!((&*content.subject.namespace, &*content.subject.name), ("shop", "web"));
    for (name, value) in [
        ("state", "opened"),
        ("verdict", "dropped"),
        ("source", "shop/Deployment/web"),
        ("destination", "shop/Deployment/db (443/TCP)"),
        ("policy", "shop/deny"),
        ("count", "1"),
        ("first", "2027-01-15T08:00:00.000Z"),
        ("last", "2027-01-15T08:00:00.000Z"),
    ] {
        assert_eq!(content.details.get(name).map(String::as_str), Some(value), "{name}");
    }
    // The policy of the receiver, which is in the same namespace.
    let of_receiver = AlertKey { direction: Some(Direction::Ingress), ..key("web", 443) };
    let mut second = AlertTable::new(QUIET);
    observe(&mut second, of_receiver, 0);
    let event = NewAgentEvent::from(second.reports(at(0), true).remove(0));
    assert_eq!((&*event.content.subject.namespace, &*event.content.subject.name), ("shop", "db"));
    let json = serde_json::to_value(&table.open()[0]).unwrap();
    assert_eq!(
        json["destination"],
        serde_json::json!({"namespace": "shop", "kind": "Deployment", "name": "db", "port": 443, "protocol": "TCP"})
    );
}

#[test]
fn all_open_alerts_are_listed_once_a_quiet_period_was_observed() {
    let mut table = AlertTable::new(QUIET);
    observe(&mut table, key("web", 443), 0);
    observe(&mut table, key("web", 80), 300_000);
    let mut list = |milliseconds: u64, leading: bool, observed: Duration| {
        let reports = table.reports(at(milliseconds), leading);
        let listed = table.all_open(at(milliseconds), leading, observed);
        (reports.len(), listed.map(|open| (open.since, open.fingerprints.len())))
    };
    assert_eq!(list(300_000, true, QUIET / 2), (2, None), "others may go on");
    assert_eq!(list(599_999, true, QUIET), (0, Some((at(599_999) - QUIET, 2))));
    assert_eq!(list(600_000, true, QUIET).1, None, "kas has the list");
    assert_eq!(list(600_001, false, QUIET).1, None);
    // The end of the first one may not have arrived.
    assert_eq!(list(610_000, true, QUIET).1.map(|(_, alerts)| alerts), Some(2), "it leads again");
    let again = 610_000 + 15 * 60_000;
    assert_eq!(list(again - 1, true, QUIET), (1, None));
    assert_eq!(list(again + 60_000, true, QUIET).1.map(|(_, alerts)| alerts), Some(0));
}

#[test]
fn fingerprint_of_a_listed_alert_is_that_of_its_events() {
    let mut table = AlertTable::new(QUIET);
    observe(&mut table, key("web", 443), 0);
    let mut events = table.reports(at(0), true);
    let open = table.all_open(at(1), true, QUIET).unwrap();
    events.extend(table.reports(at(700_000), true));
    assert_eq!(states(&events), [(AlertState::Opened, 1), (AlertState::Closed, 1)]);
    for report in events {
        let content = NewAgentEvent::from(report).bounded().content;
        assert_eq!(content.alert_fingerprint().as_ref(), open.fingerprints.first());
    }
}
