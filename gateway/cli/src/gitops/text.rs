//! The texts of `kas gitops`, for people. All names and messages come from the agent and from Git.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use manifest_diff::short_commit;
use proto::gitops::{
    AwaitedObject, CommitInfo, HeldDeletions, HeldObject, ObjectCounts, ObjectError, ProjectStatus,
    RecoveryPlan, SyncRecord,
};

use crate::{
    shell::shell_argument,
    table::{Table, age, printable},
};

/// Lines with a name and a value.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl AsRef<str>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{:<12}{}", format!("{name}:"), printable(value.as_ref()));
    }

    /// Adds the number of objects of a list that the agent has left out.
    fn add_rest(&mut self, name: &str, count: u32, shown: usize) {
        let more = (count as usize).saturating_sub(shown);
        if more > 0 && shown > 0 {
            self.add(name, format!("and {more} more"));
        } else if more > 0 {
            self.add(name, objects(count));
        }
    }
}

/// Returns the table of all projects of an agent.
pub(super) fn table(projects: &[ProjectStatus], now: SystemTime) -> String {
    if projects.is_empty() {
        return "The agent has no projects.\n".to_owned();
    }
    let heads = ["PROJECT", "STATE", "COMMIT", "OBJECTS", "FAILED", "WAITS", "AS-OF", "LAST-SYNC"];
    let mut table = Table::new(&heads);
    for project in projects {
        let ObjectCounts { total, failed, degraded, waiting, .. } = project.objects;
        table.row([
            project.project.clone(),
            project.state.as_str().to_owned(),
            project.synced.as_ref().map(|commit| short_commit(&commit.id)).unwrap_or_default(),
            total.to_string(),
            (failed + degraded).to_string(),
            waiting.to_string(),
            since(project.as_of, now).unwrap_or_default(),
            project.history.first().and_then(|record| since(record.ended, now)).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// Describes a project.
pub(super) fn describe(status: &ProjectStatus, agent: &str, now: SystemTime) -> String {
    let mut lines = Lines::default();
    lines.add("Project", &status.project);
    lines.add("State", status.state.as_str());
    lines.add("Message", &status.message);
    if !status.problem.is_empty() && status.problem != status.message {
        lines.add("Source", &status.problem);
    }
    lines.add("Follows", &status.reference);
    lines.add("Synced", status.synced.as_ref().map_or_else(|| "nothing yet".to_owned(), commit));
    if let Some(working) = &status.working {
        lines.add("Working", commit(working));
    }
    if let Some(attempted) = &status.attempted
        && ![&status.synced, &status.working].contains(&&status.attempted)
    {
        lines.add("Attempted", commit(attempted));
    }
    if let Some(age) = since(status.as_of, now) {
        lines.add("As of", format!("{age} ago"));
    }
    let ObjectCounts { total, applied, unchanged, pruned, kept, failed, degraded, progressing, waiting } =
        status.objects;
    lines.add(
        "Objects",
        format!("{total} in Git, {failed} failed, {degraded} degraded, {progressing} starting"),
    );
    // Git is compared with the cluster all the time, and mostly nothing is to be done.
    lines
        .add("Last sync", format!("{applied} applied, {unchanged} unchanged, {pruned} deleted, {kept} kept"));
    for (name, objects, count) in
        [("Waits", &status.waiting, waiting), ("Starts", &status.starting, progressing)]
    {
        for AwaitedObject { object, reason, since: begin } in objects {
            let how_long = since(*begin, now).map(|age| format!(", for {age}")).unwrap_or_default();
            lines.add(name, format!("{object}: {reason}{how_long}"));
        }
        lines.add_rest(name, count, objects.len());
    }
    status.errors.iter().for_each(|error| lines.add("Error", with_place(error)));
    status.kept.iter().for_each(|kept| lines.add("Kept", with_place(kept)));
    if !status.kept.is_empty() {
        // Those that wait for an approval are listed below.
        let waiting = status.held.as_ref().map_or(0, |held| held.count);
        lines.add_rest("Kept", kept.saturating_sub(waiting), status.kept.len());
    }
    if let Some(held) = &status.held {
        add_held(&mut lines, held, status, agent, now);
    }
    if let Some(plan) = &status.recovery {
        add_recovery(&mut lines, plan, &status.project, agent);
    }
    let mut text = lines.0;
    if !status.history.is_empty() {
        let _ = write!(text, "\n{}", history(&status.history, now));
    }
    text
}

/// Describes the inventory that agentk would write in place of a lost one.
pub(super) fn describe_recovery(status: &ProjectStatus, plan: &RecoveryPlan, agent: &str) -> String {
    let mut lines = Lines::default();
    lines.add("Message", &status.message);
    add_recovery(&mut lines, plan, &status.project, agent);
    lines.0
}

/// Adds the deletions that wait for an approval: why and since when, and what each takes with it.
fn add_held(lines: &mut Lines, held: &HeldDeletions, status: &ProjectStatus, agent: &str, now: SystemTime) {
    let HeldDeletions { code, count, objects, reason, commit, since: begin } = held;
    let how_long = since(*begin, now).map(|age| format!("for {age}"));
    let origin = Some(format!("commit {}", short_commit(commit))).filter(|_| !commit.is_empty());
    let details: Vec<String> = how_long.into_iter().chain(origin).collect();
    let details = details.join(", ");
    match (reason.is_empty() || *reason == status.message, details.is_empty()) {
        (true, true) => {}
        (true, false) => lines.add("Held", details),
        (false, true) => lines.add("Held", reason),
        (false, false) => lines.add("Held", format!("{reason} ({details})")),
    }
    for HeldObject { object, takes } in objects {
        let takes = if takes.is_empty() { String::new() } else { format!(", and with it {takes}") };
        lines.add("Deletes", format!("{object}{takes}"));
    }
    lines.add_rest("Deletes", *count, objects.len());
    if *count as usize > objects.len() {
        lines.add("All", command("diff", agent, None, &status.project));
    }
    lines.add("Approve", command("approve", agent, Some(code), &status.project));
}

fn add_recovery(lines: &mut Lines, plan: &RecoveryPlan, project: &str, agent: &str) {
    let RecoveryPlan { code, count, left, objects: not_in_git, unknown } = plan;
    let rest = match left {
        0 => "all of them in Git".to_owned(),
        left => format!("{left} of them not in Git"),
    };
    lines.add("Recovers", if *count == 0 { objects(0) } else { format!("{}, {rest}", objects(*count)) });
    not_in_git.iter().for_each(|object| lines.add("Left", object.to_string()));
    lines.add_rest("Left", *left, not_in_git.len());
    unknown.iter().for_each(|kind| lines.add("Unknown", kind));
    lines.add("Approve", command("recover", agent, Some(code), project));
}

/// Returns a command about a project. The shell reads each name as one argument, and kas as no flag.
fn command(verb: &str, agent: &str, code: Option<&str>, project: &str) -> String {
    let option = |name: &str, value: &str| {
        let separator = if value.starts_with('-') { "=" } else { " " };
        format!("{name}{separator}{}", shell_argument(value))
    };
    let end_of_options = if project.starts_with('-') { "-- " } else { "" };
    let options = [Some(option("--agent", agent)), code.map(|code| option("--code", code))];
    let options = options.into_iter().flatten().collect::<Vec<_>>().join(" ");
    format!("kas gitops {verb} {options} {end_of_options}{}", shell_argument(project))
}

/// Returns an error or a reason with its file and object.
fn with_place(error: &ObjectError) -> String {
    let object = error.object.as_ref().map(|id| format!("{id}: ")).unwrap_or_default();
    let file = if error.file.is_empty() { String::new() } else { format!("{}: ", error.file) };
    format!("{file}{object}{}", error.message)
}

fn history(records: &[SyncRecord], now: SystemTime) -> Table {
    let mut table = Table::new(&["COMMIT", "STATE", "APPLIED", "DELETED", "FAILED", "TOOK", "ENDED"]);
    for record in records {
        table.row([
            short_commit(&record.commit),
            record.state.as_str().to_owned(),
            record.objects.applied.to_string(),
            record.objects.pruned.to_string(),
            record.objects.failed.to_string(),
            format!("{}ms", record.duration),
            since(record.ended, now).unwrap_or_default(),
        ]);
    }
    table
}

fn commit(commit: &CommitInfo) -> String {
    let subject = if commit.subject.is_empty() { String::new() } else { format!(" {}", commit.subject) };
    let author = if commit.author.is_empty() { String::new() } else { format!(" ({})", commit.author) };
    format!("{}{subject}{author}", short_commit(&commit.id))
}

fn objects(count: u32) -> String {
    format!("{count} {}", if count == 1 { "object" } else { "objects" })
}

/// Returns the time since a time in milliseconds since 1970, unless it is 0, which is no time.
fn since(millis: u64, now: SystemTime) -> Option<String> {
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    (millis > 0).then(|| age(now.duration_since(then).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use proto::gitops::{ObjectId, ProjectState};

    use super::*;

    /// The time in the tests, in seconds since 1970.
    const NOW: u64 = 1090;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
    }

    /// The time so many seconds ago, in milliseconds since 1970.
    fn ago(seconds: u64) -> u64 {
        (NOW - seconds) * 1000
    }

    fn object(kind: &str, name: &str) -> ObjectId {
        ObjectId { kind: kind.to_owned(), name: name.to_owned(), ..ObjectId::default() }
    }

    fn commit(id: char, subject: &str) -> CommitInfo {
        CommitInfo { id: id.to_string().repeat(40), subject: subject.to_owned(), author: "Ada".to_owned() }
    }

    fn status() -> ProjectStatus {
        let objects =
            ObjectCounts { total: 3, applied: 1, unchanged: 1, failed: 1, ..ObjectCounts::default() };
        let error = |file: &str, message: &str| ObjectError {
            object: Some(object("ConfigMap", "a")),
            file: file.to_owned(),
            message: message.to_owned(),
        };
        ProjectStatus {
            project: "group/shop".to_owned(),
            reference: "branch main".to_owned(),
            state: ProjectState::Failed,
            message: "1 object failed; nothing was deleted".to_owned(),
            problem: "the repository does not answer".to_owned(),
            attempted: Some(commit('c', "Deploy\u{1b}[2J")),
            kept: vec![error("", "it belongs to another object (ownerReferences)")],
            objects,
            errors: vec![error("app.yaml:3", "exceeded quota (403)")],
            history: vec![SyncRecord {
                commit: "c".repeat(40),
                ended: ago(90),
                duration: 55,
                state: ProjectState::Failed,
                objects,
            }],
            ..ProjectStatus::default()
        }
    }

    #[test]
    fn project_is_shown_for_people_and_moves_no_cursor() {
        let expected = "\
Project:    group/shop
State:      failed
Message:    1 object failed; nothing was deleted
Source:     the repository does not answer
Follows:    branch main
Synced:     nothing yet
Attempted:  cccccccccccc Deploy?[2J (Ada)
Objects:    3 in Git, 1 failed, 0 degraded, 0 starting
Last sync:  1 applied, 1 unchanged, 0 deleted, 0 kept
Error:      app.yaml:3: ConfigMap a: exceeded quota (403)
Kept:       ConfigMap a: it belongs to another object (ownerReferences)

COMMIT        STATE   APPLIED  DELETED  FAILED  TOOK  ENDED
cccccccccccc  failed  1        0        1       55ms  1m30s
";
        assert_eq!(describe(&status(), "prod", now()), expected);
    }

    #[test]
    fn commit_in_work_is_shown_with_what_it_waits_for() {
        let waiting = vec![
            AwaitedObject {
                object: object("PersistentVolumeClaim", "data"),
                reason: "it has the finalizer kubernetes.io/pvc-protection".to_owned(),
                since: ago(310),
            },
            AwaitedObject { object: object("Pod", "a"), reason: "it starts".to_owned(), since: 0 },
        ];
        let status = ProjectStatus {
            project: "shop".to_owned(),
            state: ProjectState::Syncing,
            synced: Some(commit('a', "Before")),
            working: Some(commit('b', "Now")),
            attempted: Some(commit('b', "Now")),
            waiting,
            as_of: ago(12),
            objects: ObjectCounts { waiting: 5, ..ObjectCounts::default() },
            ..ProjectStatus::default()
        };
        let text = describe(&status, "prod", now());
        let expected = "\
Synced:     aaaaaaaaaaaa Before (Ada)
Working:    bbbbbbbbbbbb Now (Ada)
As of:      12s ago
Objects:    0 in Git, 0 failed, 0 degraded, 0 starting
Last sync:  0 applied, 0 unchanged, 0 deleted, 0 kept
Waits:      PersistentVolumeClaim data: it has the finalizer kubernetes.io/pvc-protection, for 5m10s
Waits:      Pod a: it starts
Waits:      and 3 more
";
        assert!(text.ends_with(expected), "{text}");
        let text = describe(&ProjectStatus { waiting: Vec::new(), ..status }, "prod", now());
        assert!(text.ends_with("Waits:      5 objects\n"), "{text}");
    }

    #[test]
    fn object_that_starts_is_no_error() {
        let starting = AwaitedObject {
            object: object("Pod", "a"),
            reason: "it pulls its image".to_owned(),
            since: ago(3),
        };
        let objects = ObjectCounts { total: 2, applied: 2, progressing: 2, ..ObjectCounts::default() };
        let status = ProjectStatus { starting: vec![starting], objects, ..ProjectStatus::default() };
        let text = describe(&status, "prod", now());
        assert!(
            text.ends_with("Starts:     Pod a: it pulls its image, for 3s\nStarts:     and 1 more\n"),
            "{text}"
        );
    }

    #[test]
    fn held_deletions_are_shown_with_their_reason_and_what_they_take() {
        let deletion = |kind: &str, name: &str, takes: &str| HeldObject {
            object: object(kind, name),
            takes: takes.to_owned(),
        };
        let held = HeldDeletions {
            code: "0a1b".to_owned(),
            count: 3,
            objects: vec![
                deletion("Namespace", "shop", "12 objects, 2 of them of others"),
                deletion("ConfigMap", "a", ""),
            ],
            reason: "a namespace cannot be had back from Git".to_owned(),
            commit: "d".repeat(40),
            since: ago(310),
        };
        let shown = |held: HeldDeletions| {
            let status =
                ProjectStatus { held: Some(held), message: "wait".to_owned(), ..ProjectStatus::default() };
            let text = describe(&status, "prod", now());
            text.split_once("0 kept\n").unwrap().1.to_owned()
        };
        let expected = "\
Held:       a namespace cannot be had back from Git (for 5m10s, commit dddddddddddd)
Deletes:    Namespace shop, and with it 12 objects, 2 of them of others
Deletes:    ConfigMap a
Deletes:    and 1 more
All:        kas gitops diff --agent prod ''
Approve:    kas gitops approve --agent prod --code 0a1b ''
";
        assert_eq!(shown(held.clone()), expected);
        let text = shown(HeldDeletions { reason: "wait".to_owned(), ..held.clone() });
        assert!(text.starts_with("Held:       for 5m10s, commit dddd"), "the message has it already: {text}");
        let text = shown(HeldDeletions { commit: String::new(), since: 0, ..held.clone() });
        assert!(text.starts_with("Held:       a namespace cannot be had back from Git\n"), "{text}");
        let text = shown(HeldDeletions { reason: String::new(), commit: String::new(), since: 0, ..held });
        assert!(text.starts_with("Deletes:    Namespace shop,"), "agentk of an earlier version: {text}");
    }

    #[test]
    fn recovery_is_shown_with_its_command() {
        let plan = RecoveryPlan {
            code: "5c1f".to_owned(),
            count: 12,
            left: 2,
            objects: vec![object("Service", "old")],
            unknown: vec!["foos.example.com: forbidden (403)".to_owned()],
        };
        let status = ProjectStatus {
            project: "group/shop".to_owned(),
            state: ProjectState::InventoryLost,
            message: "the inventory was deleted: kas gitops recover".to_owned(),
            recovery: Some(plan.clone()),
            ..ProjectStatus::default()
        };
        let expected = "\
Recovers:   12 objects, 2 of them not in Git
Left:       Service old
Left:       and 1 more
Unknown:    foos.example.com: forbidden (403)
Approve:    kas gitops recover --agent prod --code 5c1f group/shop
";
        let text = describe(&status, "prod", now());
        assert!(text.contains("State:      inventory-lost\n") && text.ends_with(expected), "{text}");
        let message = "Message:    the inventory was deleted: kas gitops recover\n";
        assert_eq!(describe_recovery(&status, &plan, "prod"), format!("{message}{expected}"));
        let plan = RecoveryPlan { left: 0, count: 1, objects: Vec::new(), ..plan };
        let text = describe_recovery(&status, &plan, "prod");
        assert!(text.contains("Recovers:   1 object, all of them in Git\nUnknown"), "{text}");
        let plan = RecoveryPlan { count: 0, ..plan };
        assert!(describe_recovery(&status, &plan, "prod").contains("Recovers:   0 objects\n"));
    }

    #[test]
    fn printed_command_does_nothing_but_the_approval() {
        for (agent, code, project, expected) in [
            ("prod", "0a1b", "group/shop", "--agent prod --code 0a1b group/shop"),
            ("my agent", "$(reboot)", "a;reboot", "--agent 'my agent' --code '$(reboot)' 'a;reboot'"),
            ("-x", "-y", "--output=json", "--agent=-x --code=-y -- '--output=json'"),
            ("it's", "\u{202e}", "a\nb", r"--agent $'it\047s' --code $'\342\200\256' $'a\012b'"),
        ] {
            let command = command("approve", agent, Some(code), project);
            assert_eq!(command, format!("kas gitops approve {expected}"));
            assert_eq!(printable(&command), command);
        }
    }

    #[test]
    fn projects_are_listed_with_numbers_and_ages() {
        let mut status = status();
        (status.objects.waiting, status.as_of) = (2, ago(12));
        let expected = "\
PROJECT     STATE   COMMIT  OBJECTS  FAILED  WAITS  AS-OF  LAST-SYNC
group/shop  failed  -       3        1       2      12s    1m30s
";
        assert_eq!(table(&[status], now()), expected);
        assert_eq!(table(&[], now()), "The agent has no projects.\n");
    }
}
