//! Previews in merge requests of GitLab, from the push to the note.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{collections::VecDeque, fs, sync::Arc, time::Duration};

use agentk_core::Services;
use gitops_wire::{MergeRequestApi as _, MergeRequestError, MergeRequestNote, NotePlace};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kas_gitlab::GitLabMergeRequests;
use kas_testing::{fleet::TestFleet, world::World};
use parking_lot::Mutex;
use proto::gitops::{DiffRequest, DiffSummary};
use serde_json::json;
use tempfile::NamedTempFile;
use testing::gitlab::{Endpoint, OpenMergeRequest, PostedNote, Project, StandIn, User};
use tokio::time::sleep;
use tunnel::Body;

use crate::{
    gitlab_client::{TOKEN, client, standin},
    gitlab_pushes::{OWN, push, start_features, until, with_repository},
    manifests::Pod,
};

/// The token of the operator, and that of somebody else.
const BOT: &str = "glpat-bot";
const MALLORY: &str = "glpat-mallory";
const MARKER: &str = "<!-- kas-preview -->";
const CONFIGURATION: &str =
    "gitops: {manifest_projects: [{id: group/project, interval: 1h, merge_request_previews: true}]}";

fn token_file(token: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("{token}\n")).unwrap();
    file
}

fn open(number: u64, source_project: u64, digit: char) -> OpenMergeRequest {
    let sha = digit.to_string().repeat(40);
    OpenMergeRequest { project: 7, number, source_project, target: "main".to_owned(), sha }
}

fn forged(number: u64) -> PostedNote {
    PostedNote { project: 7, merge_request: number, author: 2, body: format!("{MARKER}\nforged") }
}

/// Returns the notes of the token's user in a merge request.
fn own_notes(gitlab: &StandIn, number: u64) -> Vec<String> {
    let state = gitlab.state();
    let own = state.notes.iter().filter(|note| note.author == 1 && note.merge_request == number);
    own.map(|note| note.body.clone()).collect()
}

/// A pod of agentk that is the source of manifests, and whose diffs name their commit.
fn pod() -> Services {
    pod_that_refuses(&Arc::default())
}

/// Returns such a pod, which responds to its first diffs with these statuses.
fn pod_that_refuses(refusals: &Arc<Mutex<VecDeque<u16>>>) -> Services {
    let refusals = Arc::clone(refusals);
    Pod::new(200)
        .services()
        .with_fn("gitops", move |request: Request<Body>| diff(request, Arc::clone(&refusals)))
}

async fn diff(request: Request<Body>, refusals: Arc<Mutex<VecDeque<u16>>>) -> Response<Body> {
    assert_eq!(request.uri(), "/v1/projects/group%2Fproject/diff");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let request: DiffRequest = serde_json::from_slice(&body).unwrap();
    let refusal = refusals.lock().pop_front();
    if let Some(status) = refusal {
        return Response::builder().status(status).body(Body::empty()).unwrap();
    }
    let summary = DiffSummary { change: 1, ..DiffSummary::default() };
    let name = format!("of {:?}\n/merge @all", request.reference.unwrap());
    let object = json!({"kind": "ConfigMap", "namespace": "shop", "name": name, "group": ""});
    let fields = json!([{"path": "data.a", "before": "x", "after": "```\n/merge"}]);
    let line =
        json!({"object": {"action": "change", "object": object, "file": "a.yaml:1", "fields": fields}});
    Response::new(Body::from(bytes::Bytes::from(format!("{line}\n{}\n", json!({"end": summary})))))
}

/// Lets time pass for kas and its agents, faster than it does.
async fn pass(seconds: u64) {
    for _ in 0..seconds.div_ceil(5) {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(5)).await;
        tokio::time::resume();
        sleep(Duration::from_millis(2)).await;
    }
}

fn previews(world: &World, result: &str) -> f64 {
    world.metric(&format!("kas_gitops_merge_request_previews_total{{result=\"{result}\"}}"))
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn push_updates_the_one_note_of_a_merge_request() {
    let (gitlab, _gitaly) = with_repository(CONFIGURATION).await;
    gitlab.state().users = vec![User::new(1, "bot").with_api_token(BOT, 7)];
    gitlab.state().notes = vec![forged(12)];
    // The merge request of a fork, and one into another branch.
    let other = OpenMergeRequest { target: "other".to_owned(), ..open(14, 7, 'c') };
    gitlab.state().merge_requests = vec![open(12, 7, 'a'), other];
    // The newest ones, more than a list has.
    gitlab.state().merge_requests.extend((20..50).map(|number| open(number, 99, 'b')));
    let token = token_file(BOT);
    let new_client = || client(&gitlab).with_comment_token_file(Some(token.path()));
    let fleet = TestFleet::with_gitlab(2, new_client, TOKEN);
    fleet.replicas.iter().for_each(start_features);
    // Both replicas are the source of a pod, as when agentk goes over to another replica.
    let _agents = (fleet.replicas[0].agent(pod()).await, fleet.replicas[1].agent(pod()).await);
    let says = |text: &str| own_notes(&gitlab, 12).first().is_some_and(|note| note.contains(text));

    until("the note is written", || says("`aaaaaaaaaaaa`")).await;
    pass(10).await;
    gitlab.state().merge_requests[0] = open(12, 7, 'd');
    push(&fleet.replicas[1], 7, OWN).await;
    pass(40).await;
    until("the note is replaced", || says("`dddddddddddd`")).await;
    pass(10).await;
    let [note] = &*own_notes(&gitlab, 12) else { panic!("{:?}", gitlab.state().notes) };
    assert!(note.contains("**1 to change**") && !note.contains("aaaaaaaaaaaa"), "{note}");
    assert_eq!(gitlab.state().notes.len(), 2, "neither the fork nor the other branch has a note");
    assert_eq!(gitlab.state().notes[0], forged(12), "a note of somebody else stays");
    assert_eq!(
        fleet.replicas.iter().map(|world| previews(world, "fork")).sum::<f64>(),
        0.0,
        "none is in the list"
    );
    assert_eq!(fleet.replicas.iter().map(|world| previews(world, "created")).sum::<f64>(), 1.0);
    gitlab.assert_no_violations();
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn gitlab_that_refuses_is_asked_again_later() {
    let (gitlab, _gitaly) = with_repository(CONFIGURATION).await;
    gitlab.state().users = vec![User::new(1, "bot").with_project(BOT, 7)];
    gitlab.state().merge_requests = vec![open(12, 7, 'a')];
    let token = token_file(BOT);
    let world =
        World::with_gitlab(client(&gitlab).with_comment_token_file(Some(token.path())), TOKEN, |_| {});
    start_features(&world);
    let _agent = world.agent_with_tunnels(pod(), 2).await;
    // The token has the scope read_api only.
    until("GitLab refuses the note", || previews(&world, "refused") >= 1.0).await;
    pass(300).await;
    assert_eq!(previews(&world, "refused"), 1.0, "nothing has changed since");

    gitlab.state().users = vec![User::new(1, "bot").with_api_token(BOT, 7)];
    gitlab.state().note_refusals = [429].into();
    pass(310).await;
    until("GitLab asks for time", || previews(&world, "failed") >= 1.0).await;
    // kas begins its pause after the metric has counted the failure.
    let written = || own_notes(&gitlab, 12).len() == 1;
    for _ in 0..100 {
        if !written() {
            pass(10).await;
        }
    }
    until("the note is written", written).await;
    gitlab.assert_no_violations();
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn preview_without_the_key_of_the_project_does_not_exist() {
    let (gitlab, _gitaly) =
        with_repository("gitops: {manifest_projects: [{id: group/project, interval: 1h}]}").await;
    gitlab.state().users = vec![User::new(1, "bot").with_api_token(BOT, 7)];
    gitlab.state().merge_requests = vec![open(12, 7, 'a')];
    let token = token_file(BOT);
    let world =
        World::with_gitlab(client(&gitlab).with_comment_token_file(Some(token.path())), TOKEN, |_| {});
    start_features(&world);
    let _agent = world.agent_with_tunnels(pod(), 2).await;
    until("the repository is read", || world.metric("kas_gitops_looks_total{result=\"changed\"}") >= 1.0)
        .await;
    push(&world, 7, OWN).await;
    pass(300).await;
    assert_eq!(gitlab.requests(Endpoint::MergeRequests), 0);
    assert_eq!(gitlab.requests(Endpoint::Notes), 0);
    assert!(gitlab.state().notes.is_empty());
    gitlab.assert_no_violations();
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn agentk_that_makes_no_diff_now_is_asked_again() {
    let (gitlab, _gitaly) = with_repository(CONFIGURATION).await;
    gitlab.state().users = vec![User::new(1, "bot").with_api_token(BOT, 7)];
    gitlab.state().merge_requests = vec![open(12, 7, 'a')];
    let token = token_file(BOT);
    let world =
        World::with_gitlab(client(&gitlab).with_comment_token_file(Some(token.path())), TOKEN, |_| {});
    start_features(&world);
    let refusals = Arc::new(Mutex::new(VecDeque::from([503, 400, 503, 400])));
    let _agent = world.agent_with_tunnels(pod_that_refuses(&refusals), 2).await;
    until("agentk refuses a diff", || previews(&world, "failed") >= 1.0).await;
    assert!(own_notes(&gitlab, 12).is_empty(), "a failure that ends is not written");
    for _ in 0..10 {
        pass(20).await;
        sleep(Duration::from_millis(50)).await;
    }
    until("the note is written", || own_notes(&gitlab, 12).len() == 1).await;
    let [note] = &*own_notes(&gitlab, 12) else { panic!("{:?}", gitlab.state().notes) };
    assert!(note.contains("**1 to change**") && !note.contains("There is no diff"), "{note}");
    gitlab.assert_no_violations();
}

/// Returns the merge requests of a stand-in whose project has one, with the token of this file.
fn merge_requests(gitlab: &StandIn, token: &NamedTempFile) -> GitLabMergeRequests {
    let mut state = gitlab.state();
    state.projects.push(Project::new(7, OWN));
    state.users = vec![
        User::new(1, "bot").with_api_token(BOT, 7),
        User::new(2, "mallory").with_api_token(MALLORY, 7),
        User::new(3, "reader").with_project("glpat-reader", 7),
    ];
    drop(state);
    GitLabMergeRequests::new(&client(gitlab).with_comment_token_file(Some(token.path()))).unwrap()
}

const PLACE: NotePlace = NotePlace { project: 7, merge_request: 12 };

#[tokio::test(start_paused = true)]
async fn note_of_kas_is_that_of_its_user_with_its_marker() {
    let (gitlab, token) = (standin().await, token_file(BOT));
    assert!(GitLabMergeRequests::new(&client(&gitlab)).is_none(), "the operator has given no token");
    let api = merge_requests(&gitlab, &token);
    // More than a page of notes: of somebody else, of another merge request, and of the user without the marker.
    gitlab.state().notes = vec![forged(12); 60];
    let own = |merge_request, body: &str| PostedNote {
        project: 7,
        merge_request,
        author: 1,
        body: body.to_owned(),
    };
    gitlab.state().notes.extend([own(13, MARKER), own(12, &format!("see {MARKER}"))]);
    assert_eq!(api.own_note(PLACE, MARKER).await.unwrap(), None);

    let text = format!("{MARKER}\none");
    api.write_note(PLACE, None, &text).await.unwrap();
    let note = api.own_note(PLACE, MARKER).await.unwrap();
    assert_eq!(note, Some(MergeRequestNote { id: 63, body: text }));
    let text = format!("{MARKER}\ntwo");
    api.write_note(PLACE, Some(63), &text).await.unwrap();
    assert_eq!(api.own_note(PLACE, MARKER).await.unwrap(), Some(MergeRequestNote { id: 63, body: text }));
    assert_eq!(gitlab.state().notes.len(), 63);

    gitlab.state().notes = vec![forged(12); 1000];
    let error = api.own_note(PLACE, MARKER).await.unwrap_err();
    assert!(matches!(error, MergeRequestError::Refused(_)), "a second note would be possible: {error}");
    gitlab.assert_no_violations();
}

/// GitLab accepts a million characters in each note, and strangers can write any number of them.
#[tokio::test(start_paused = true)]
async fn note_of_kas_is_found_among_huge_ones() {
    let (gitlab, token) = (standin().await, token_file(BOT));
    let api = merge_requests(&gitlab, &token);
    let text = format!("{MARKER}\none");
    for (huge, strangers) in [("x".repeat(1_000_000), 12), ("\u{1}".repeat(1_000_000), 2)] {
        let strange = PostedNote { body: huge, ..forged(12) };
        let own = PostedNote { author: 1, body: text.clone(), ..forged(12) };
        gitlab.state().notes = vec![strange; strangers];
        assert_eq!(api.own_note(PLACE, MARKER).await.unwrap(), None);
        gitlab.state().notes.push(own);
        let found = Some(MergeRequestNote { id: strangers as u64 + 1, body: text.clone() });
        assert_eq!(api.own_note(PLACE, MARKER).await.unwrap(), found);
    }
    gitlab.assert_no_violations();
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn huge_notes_of_a_stranger_hold_up_one_merge_request_only() {
    let (gitlab, _gitaly) = with_repository(CONFIGURATION).await;
    gitlab.state().users = vec![User::new(1, "bot").with_api_token(BOT, 7)];
    // The last one is the first of the list.
    gitlab.state().merge_requests = vec![open(12, 7, 'a'), open(13, 7, 'b')];
    gitlab.state().notes = vec![PostedNote { body: "\u{1}".repeat(1_000_000), ..forged(13) }; 4];
    let token = token_file(BOT);
    let world =
        World::with_gitlab(client(&gitlab).with_comment_token_file(Some(token.path())), TOKEN, |_| {});
    start_features(&world);
    let _agent = world.agent(pod()).await;
    until("the search has ended", || previews(&world, "refused") >= 1.0).await;
    until("the other one has its note", || own_notes(&gitlab, 12).len() == 1).await;
    assert_eq!(previews(&world, "refused"), 1.0, "the next search is in 10 min");
    assert!(own_notes(&gitlab, 13).is_empty(), "it may have a note of kas behind the huge ones");
    assert!(gitlab.requests(Endpoint::Notes) < 20, "few requests for the huge notes");
    let requests = |result: &str| {
        let labels = format!("endpoint=\"merge_request_notes\",result=\"{result}\"");
        format!("kas_gitlab_requests_total{{{labels}}}")
    };
    assert_eq!(world.metric(&requests("too-large")), 2.0, "a page of 50 notes, and one of 5");
    assert!(!world.has_metric(&requests("failed")), "no fault of GitLab");
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn error_of_gitlab_names_the_reason_and_no_token() {
    let (gitlab, token) = (standin().await, token_file("glpat-reader"));
    let api = merge_requests(&gitlab, &token);
    let refused = async || match api.write_note(PLACE, None, MARKER).await {
        Err(MergeRequestError::Refused(message)) if !message.contains("glpat") => message,
        other => panic!("{other:?}"),
    };
    assert!(refused().await.contains("403 Forbidden: insufficient_scope"));
    fs::write(token.path(), "glpat-unknown").unwrap();
    assert!(refused().await.contains("401"));

    fs::write(token.path(), BOT).unwrap();
    gitlab.state().note_refusals = [429, 502].into();
    for expected in ["429", "502"] {
        let error = api.write_note(PLACE, None, MARKER).await.unwrap_err();
        assert!(
            matches!(&error, MergeRequestError::Unavailable { message, .. } if message.contains(expected)),
            "{error:?}"
        );
    }
    assert!(gitlab.state().notes.is_empty(), "kas looks for a note before it writes a second time");
    // The text of a note replaces the one before it, so that kas may send it twice.
    api.write_note(PLACE, None, MARKER).await.unwrap();
    gitlab.state().note_refusals = [429, 502].into();
    api.write_note(PLACE, Some(1), "again").await.unwrap();
    assert_eq!(own_notes(&gitlab, 12), ["again"]);

    fs::remove_file(token.path()).unwrap();
    let error = api.open_merge_requests(7, "main").await.unwrap_err().to_string();
    assert!(error.contains("gitlab.comment_token_file cannot be read"), "{error}");
    gitlab.assert_no_violations();
}
