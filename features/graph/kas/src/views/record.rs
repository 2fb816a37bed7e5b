//! The last values of the views of an agent. No I/O.

use std::time::{Duration, SystemTime};

use proto::{ReplicaId, graph::View};
use serde::{Deserialize, Serialize};
use settings::rfc3339;

/// The age of a record up to which its replica is taken for the one that follows the agent. It writes a record every 15 s.
const FOLLOWED: Duration = Duration::from_secs(30);
/// The most rows and columns of a view, and the longest text, in bytes. Those of an honest agentk are shorter.
const MAX_ROWS: usize = 100;
const MAX_COLUMNS: usize = 11;
const MAX_TEXT: usize = 512;
/// The most sentences about what may be missing.
const MAX_PARTIAL: usize = 32;
/// The most bytes of the cells of all views.
const MAX_BYTES: usize = 160 << 10;

/// The last values of the views of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViewsRecord {
    /// The time at which the agent had these values.
    #[serde(with = "rfc3339")]
    pub(crate) time: SystemTime,
    /// The replica that has received them.
    pub(crate) replica: ReplicaId,
    /// The views, in the order of the configuration.
    pub(crate) views: Vec<View>,
}

impl ViewsRecord {
    /// Returns whether another replica than `own` follows the agent.
    pub(super) fn is_followed_by_another(&self, own: ReplicaId, now: SystemTime) -> bool {
        // A record from the future is forged, or the clock of its replica is wrong.
        self.replica != own && now.duration_since(self.time).is_ok_and(|age| age < FOLLOWED)
    }

    /// Reads a record of Redis, which is not trusted. Returns `None` if it is none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut record: Self = serde_json::from_slice(bytes).ok()?;
        let names: Vec<String> = record.views.iter().map(|view| view.name.clone()).collect();
        record.views = bounded(record.views, &names);
        Some(record)
    }
}

/// Returns the views with these names, cut to what an honest agentk sends.
pub(super) fn bounded(views: Vec<View>, names: &[String]) -> Vec<View> {
    let mut budget = MAX_BYTES;
    let cut = |text: &mut String| text.truncate(text.floor_char_boundary(MAX_TEXT));
    let mut known: Vec<View> = Vec::new();
    for mut view in views {
        let is_new = names.contains(&view.name) && known.iter().all(|before| before.name != view.name);
        if !is_new || known.len() == names.len().min(20) {
            continue;
        }
        let columns = view.columns.len().min(MAX_COLUMNS);
        view.columns.truncate(columns);
        view.columns.iter_mut().for_each(cut);
        view.partial.truncate(MAX_PARTIAL);
        view.partial.iter_mut().for_each(cut);
        let all = view.rows.len();
        view.rows.truncate(MAX_ROWS);
        for row in &mut view.rows {
            // Each row has a text for each column.
            row.resize(columns, String::new());
            row.iter_mut().for_each(cut);
        }
        let fitting = view.rows.iter().take_while(|row| {
            let size = row.iter().map(|cell| cell.len() + 4).sum();
            let left = budget.checked_sub(size);
            budget = left.unwrap_or(0);
            left.is_some()
        });
        let fitting = fitting.count();
        view.rows.truncate(fitting);
        view.omitted = view.omitted.saturating_add((all - fitting) as u64);
        known.push(view);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str, rows: Vec<Vec<String>>) -> View {
        View { name: name.to_owned(), columns: vec!["a".to_owned(), "b".to_owned()], rows, ..View::default() }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn record_says_which_replica_follows() {
        let (own, other) = (ReplicaId::random(), ReplicaId::random());
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let record = |replica| ViewsRecord { time, replica, views: Vec::new() };
        let after = |seconds| time + Duration::from_secs(seconds);
        assert!(record(other).is_followed_by_another(own, after(20)));
        assert!(!record(other).is_followed_by_another(own, after(40)), "the other replica is gone");
        assert!(!record(own).is_followed_by_another(own, after(20)));
        assert!(!record(other).is_followed_by_another(own, time - Duration::from_secs(1)), "from the future");
    }

    #[test]
    fn hostile_views_are_cut() {
        let long = "é".repeat(4000);
        let wide = view("wide", vec![vec![long.clone(); 30]; 130]);
        let short = view("short", vec![vec![], names(&["1", "2", "3"])]);
        let views =
            vec![wide.clone(), wide, short, view("unknown", vec![]), view("late", vec![names(&["x", "y"])])];
        let views = bounded(views, &names(&["wide", "short", "late"]));
        let found: Vec<(&str, usize, u64)> =
            views.iter().map(|view| (&*view.name, view.rows.len(), view.omitted)).collect();
        assert_eq!(found, [("wide", 100, 30), ("short", 2, 0), ("late", 1, 0)]);
        assert_eq!(views[1].rows, [names(&["", ""]), names(&["1", "2"])]);
        assert!(views[0].rows.iter().flatten().all(|cell| cell.len() <= MAX_TEXT));

        let full = vec![vec![long; 2]; 100];
        let many = ["a", "b", "c"].map(|name| view(name, full.clone()));
        let many = bounded(many.into(), &names(&["a", "b", "c"]));
        assert!(serde_json::to_vec(&many).unwrap().len() < 200 << 10);
        assert!(many[2].omitted > 0);
    }

    #[test]
    fn record_is_read_as_it_is_written() {
        let record = ViewsRecord {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000),
            replica: ReplicaId::random(),
            views: vec![view("nodes", vec![names(&["x", "1"])])],
        };
        assert_eq!(ViewsRecord::parse(&serde_json::to_vec(&record).unwrap()), Some(record));
        for wrong in ["", "{}", "[1,2]", "{\"time\": 7}"] {
            assert_eq!(ViewsRecord::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
