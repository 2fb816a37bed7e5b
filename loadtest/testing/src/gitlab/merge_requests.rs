//! The public API: merge requests, and notes in them.

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gitlab::{
    answer::{Answer, message, unauthorized},
    public::{readable_project, writable_project},
    request::{KasRequest, Violation, parse, violation},
    state::{OpenMergeRequest, PostedNote, State, User},
};

/// The most characters of a note.
const MAX_NOTE: usize = 1_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoteText {
    body: String,
}

/// Answers `GET /projects/:id/merge_requests`.
pub(crate) fn list(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let query = percent_decode_str(&request.query).decode_utf8_lossy();
    let target = query
        .strip_prefix("state=opened&source_project_id=")
        .and_then(|rest| rest.strip_suffix("&order_by=updated_at&sort=desc&per_page=20"))
        .and_then(|rest| rest.split_once("&target_branch="));
    let (source, target) = target.ok_or_else(|| violation(400, format!("the query is {query}")))?;
    let project = match readable_project(state, request) {
        Ok(project) => project.id,
        Err(answer) => return Ok(answer),
    };
    let source = number(source)?;
    let open = state.merge_requests.iter().rev();
    let wanted = |one: &&OpenMergeRequest| {
        (one.project, one.source_project, &*one.target) == (project, source, target)
    };
    let found = open.filter(wanted).take(20);
    Ok((200, found.map(entry).collect()))
}

fn entry(request: &OpenMergeRequest) -> Value {
    json!({
        "iid": request.number,
        "state": "opened",
        "sha": request.sha,
        "source_project_id": request.source_project,
        "target_project_id": request.project,
        "target_branch": request.target,
    })
}

/// Answers `GET /user`.
pub(crate) fn current_user(state: &State, request: &KasRequest) -> Answer {
    match user(state, request) {
        Some(User { id, username, .. }) => (200, json!({"id": id, "username": username})),
        None => unauthorized(),
    }
}

fn user<'a>(state: &'a State, request: &KasRequest) -> Option<&'a User> {
    state.users.iter().find(|user| user.tokens.iter().any(|known| known.token == request.token))
}

/// Answers `GET /projects/:id/merge_requests/:iid/notes` with a page of them, of which the oldest is the first.
pub(crate) fn notes(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let query = percent_decode_str(&request.query).decode_utf8_lossy();
    let begin = "activity_filter=only_comments&order_by=created_at&sort=asc&per_page=";
    let numbers = query.strip_prefix(begin).and_then(|rest| rest.split_once("&page="));
    let numbers = numbers.and_then(|(size, page)| Some((size.parse().ok()?, page.parse().ok()?)));
    let numbers = numbers.filter(|(size, page): &(usize, usize)| (1..=100).contains(size) && *page > 0);
    let (size, page) = numbers.ok_or_else(|| violation(400, format!("the query is {query}")))?;
    let project = match readable_project(state, request) {
        Ok(project) => project.id,
        Err(answer) => return Ok(answer),
    };
    let number = number(&request.part)?;
    let of_request = state
        .notes
        .iter()
        .enumerate()
        .filter(|(_, note)| (note.project, note.merge_request) == (project, number));
    let page = of_request.skip((page - 1) * size).take(size);
    let shown = page.map(|(index, note)| {
        json!({"id": index + 1, "body": note.body, "author": {"id": note.author}, "system": false})
    });
    Ok((200, shown.collect()))
}

/// Answers `POST /projects/:id/merge_requests/:iid/notes` with JSON, or with a form, as curl sends it.
pub(crate) fn add_note(state: &mut State, request: &KasRequest) -> Result<Answer, Violation> {
    let (project, author) = match writer(state, request) {
        Ok(writer) => writer,
        Err(answer) => return Ok(answer),
    };
    let body = text(&request.body)?;
    let merge_request = number(&request.part)?;
    state.notes.push(PostedNote { project, merge_request, author, body });
    Ok((201, json!({"id": state.notes.len()})))
}

/// Answers `PUT /projects/:id/merge_requests/:iid/notes/:note_id`.
pub(crate) fn edit_note(state: &mut State, request: &KasRequest) -> Result<Answer, Violation> {
    let (project, author) = match writer(state, request) {
        Ok(writer) => writer,
        Err(answer) => return Ok(answer),
    };
    let body = text(&request.body)?;
    let (merge_request, index) = (number(&request.part)?, number(&request.token_id)? as usize);
    let note = index.checked_sub(1).and_then(|index| state.notes.get_mut(index));
    match note.filter(|note| (note.project, note.merge_request) == (project, merge_request)) {
        None => Ok((404, message("404 Note Not Found"))),
        Some(note) if note.author != author => Err(violation(403, "the note is of another user")),
        Some(note) => {
            note.body = body;
            Ok((200, json!({"id": index})))
        }
    }
}

/// Returns the project and the user of a request that may write a note, or the answer to another one.
fn writer(state: &mut State, request: &KasRequest) -> Result<(u64, u64), Answer> {
    let project = writable_project(state, request)?;
    let author = user(state, request).ok_or_else(unauthorized)?.id;
    match state.note_refusals.pop_front() {
        Some(status) => Err((status, message("refused"))),
        None => Ok((project, author)),
    }
}

/// Returns the text of a note. GitLab executes its commands with the rights of the author, which no program wants.
fn text(body: &[u8]) -> Result<String, Violation> {
    let form = str::from_utf8(body).ok().and_then(|form| form.strip_prefix("body="));
    let text = match form {
        Some(form) => percent_decode_str(&form.replace('+', " ")).decode_utf8_lossy().into_owned(),
        None => parse::<NoteText>(body)?.body,
    };
    if text.is_empty() || text.chars().count() > MAX_NOTE {
        return Err(violation(400, "body is empty or too long"));
    }
    if text.lines().any(|line| line.starts_with('/')) {
        return Err(violation(400, format!("the note has a command: {text}")));
    }
    // GitLab removes whitespace at the end.
    Ok(text.trim_end().to_owned())
}

fn number(text: &str) -> Result<u64, Violation> {
    text.parse().map_err(|_| violation(400, format!("{text} is not a number")))
}
