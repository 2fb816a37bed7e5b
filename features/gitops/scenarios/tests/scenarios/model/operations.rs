//! The operations that happen to a cluster with projects, at random. Their `Debug` forms are the code of a test.

use std::fmt;

use fake_cluster::Death;
use proptest::{collection::vec, option, prelude::*, sample::select};
use proto::agent_configuration::gitops::InventoryPolicy;

use super::universe::*;

/// A project: 0 or 1.
pub(super) type ProjectNumber = usize;

/// An operation, and the pass of a project that follows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step(pub(super) Operation, pub(super) Option<(ProjectNumber, Pass)>);

/// Something that happens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operation {
    Nothing,
    /// A new commit with these objects in these variants.
    Commit(ProjectNumber, Things),
    /// The process of the project ends, and another one begins.
    Restart(ProjectNumber),
    /// The oldest write of a dead process arrives.
    Deliver,
    /// Somebody else does something.
    Others(Others),
    Set(ProjectNumber, Setting),
    Lose(ProjectNumber, Loss),
    Approve(ProjectNumber, Approval),
    /// The inventory is made anew, first as a plan, and then with its code.
    Recover(ProjectNumber, Pass),
    /// Seconds pass.
    Sleep(u64),
    /// Controllers make all workloads healthy from now on, or do not.
    Controllers(bool),
    /// An API group does not respond.
    Unavailable(Option<&'static str>),
}

/// The objects of a commit with their variants.
#[derive(Clone, PartialEq)]
pub(super) struct Things(pub(super) Vec<(Thing, u8)>);

/// How a pass of the engine goes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pass {
    Clean,
    /// The process dies at this request.
    Kill(usize, Death),
    /// The fence is closed after so many checks.
    Stop(usize),
    /// Requests fail from this one on: how many, with which status, and whether they have their effects all the same.
    Fail(usize, usize, u16, bool),
    /// Somebody else does something just before this request.
    Race(usize, Others),
}

/// Something that somebody else does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Others {
    /// Changes a value that is in Git.
    Edit(Thing),
    RemoveLabel(Thing),
    Delete(Thing),
    /// Deletes the object and creates another one of the same name, with the label of the project or without it.
    Recreate(Thing, bool),
    /// Creates another object from it, with all labels.
    Copy(Thing),
    RemoveCopy(Thing),
    Annotate(Thing, Annotation),
    AddFinalizer(Thing),
    RemoveFinalizers(Thing),
    Create(Foreign),
    Remove(Foreign),
}

/// An annotation that somebody else sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Annotation {
    Keep,
    Confirm,
    Allow,
    /// Removes all of them.
    None,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Setting {
    MaxPrune(u32),
    MaxPrunePercent(u8),
    Prune(bool),
    PruneIrreplaceable(bool),
    DefaultNamespace(&'static str),
    Namespaces(Option<&'static [&'static str]>),
    Policy(InventoryPolicy),
    SelfHeal(bool),
}

/// What happens to an inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Parent,
    Members,
    Both,
    /// An older version, some completed passes ago, is restored.
    OldParent(usize),
    OldMembers(usize),
    /// It is deleted, and created again from a backup.
    CopyParent,
    CopyMembers,
    CopyBoth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Approval {
    /// Of the plan that is held.
    Current,
    /// Of one that was held before.
    Old(usize),
}

impl fmt::Debug for Things {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Things(vec!{:?})", self.0)
    }
}

/// Returns sequences of operations. They begin with a commit that is complete.
pub(super) fn sequences() -> BoxedStrategy<Vec<Step>> {
    let first = vec(any::<bool>(), FIRST.len()).prop_map(|left_out| {
        let things = FIRST.iter().zip(left_out).filter(|(_, left_out)| !left_out);
        closed(things.map(|(thing, _)| (*thing, 1)).collect())
    });
    let first = prop_oneof![3 => Just(Things(FIRST.map(|thing| (thing, 1)).to_vec())), 1 => first];
    let begin = (any::<bool>(), first).prop_map(|(controllers, things)| {
        let controllers = Step(Operation::Controllers(!controllers), None);
        vec![controllers, Step(Operation::Commit(0, things), Some((0, Pass::Clean)))]
    });
    (begin, vec(step(), 1..=7))
        .prop_map(|(mut steps, more)| {
            steps.extend(more);
            steps
        })
        .boxed()
}

fn project() -> BoxedStrategy<ProjectNumber> {
    prop_oneof![5 => Just(0), 1 => Just(1)].boxed()
}

fn step() -> BoxedStrategy<Step> {
    let then = prop_oneof![1 => Just(None), 5 => (project(), pass()).prop_map(Some)];
    (operation(), then)
        .prop_map(|(operation, then)| {
            // The pass is mostly of the project that the operation is about.
            let own = match &operation {
                Operation::Commit(project, _)
                | Operation::Restart(project)
                | Operation::Set(project, _)
                | Operation::Lose(project, _)
                | Operation::Approve(project, _)
                | Operation::Recover(project, _) => Some(*project),
                _ => None,
            };
            Step(operation, then.map(|(project, pass)| (own.unwrap_or(project), pass)))
        })
        .boxed()
}

fn operation() -> BoxedStrategy<Operation> {
    use Operation::*;
    prop_oneof![
        4 => Just(Nothing),
        10 => prop_oneof![5 => commit(&FIRST).prop_map(|things| (0, things)), 2 => commit(&SECOND).prop_map(|things| (1, things))]
            .prop_map(|(project, things)| Commit(project, things)),
        1 => project().prop_map(Restart),
        2 => Just(Deliver),
        8 => others().prop_map(Others),
        4 => (project(), setting()).prop_map(|(project, setting)| Set(project, setting)),
        2 => (project(), loss()).prop_map(|(project, loss)| Lose(project, loss)),
        4 => (project(), prop_oneof![4 => Just(Approval::Current), 1 => (0..3_usize).prop_map(Approval::Old)])
            .prop_map(|(project, approval)| Approve(project, approval)),
        2 => (project(), pass()).prop_map(|(project, pass)| Recover(project, pass)),
        3 => select(vec![5, 30, 3_700]).prop_map(Sleep),
        2 => any::<bool>().prop_map(Controllers),
        1 => option::of(select(vec!["apps", TOYS_GROUP])).prop_map(Unavailable),
    ].boxed()
}

/// Returns commits: few objects less than all, or any objects.
fn commit(all: &'static [Thing]) -> BoxedStrategy<Things> {
    let count = all.len();
    let few = vec(0..count, 0..4).prop_map(move |gone| {
        (0..count).filter(|index| !gone.contains(index)).map(|index| all[index]).collect::<Vec<_>>()
    });
    let some = vec(any::<bool>(), count).prop_map(move |is_in| {
        all.iter().zip(is_in).filter(|(_, is_in)| *is_in).map(|(thing, _)| *thing).collect()
    });
    let things = prop_oneof![6 => few, 3 => some, 1 => Just(Vec::new())];
    let variants = prop_oneof![3 => Just(0_u16), 1 => any::<u16>()];
    (things, variants, any::<bool>())
        .prop_map(move |(things, variants, open)| {
            let variant = |thing| {
                let index = all.iter().position(|other| *other == thing).unwrap_or_default();
                (thing, 1 + u8::from(variants & (1 << index) != 0))
            };
            let things = things.into_iter().map(variant).collect();
            if open { Things(things) } else { closed(things) }
        })
        .boxed()
}

/// Adds the namespace and the definition that the objects need.
fn closed(mut things: Vec<(Thing, u8)>) -> Things {
    let has =
        |things: &[(Thing, u8)], wanted: &[Thing]| things.iter().any(|(thing, _)| wanted.contains(thing));
    for (container, content) in [(Shop, &[Inner, Db][..]), (Toys, &[Toy])] {
        if has(&things, content) && !has(&things, &[container]) {
            things.push((container, 1));
        }
    }
    Things(things)
}

fn pass() -> BoxedStrategy<Pass> {
    let death = select(vec![Death::Before, Death::After, Death::Late]);
    let status = select(vec![403, 409, 429, 500]);
    prop_oneof![
        8 => Just(Pass::Clean),
        3 => (request(), death).prop_map(|(at, death)| Pass::Kill(at, death)),
        1 => request().prop_map(Pass::Stop),
        2 => (request(), select(vec![1, 6, 60]), status, any::<bool>())
            .prop_map(|(at, count, status, after)| Pass::Fail(at, count, status, after)),
        1 => (request(), racing()).prop_map(|(at, others)| Pass::Race(at, others)),
    ]
    .boxed()
}

/// Returns the number of a request of a pass, which has up to about a hundred.
fn request() -> BoxedStrategy<usize> {
    prop_oneof![0..20_usize, 0..70_usize].boxed()
}

fn thing() -> BoxedStrategy<Thing> {
    select(FIRST.to_vec()).boxed()
}

fn annotation() -> BoxedStrategy<Annotation> {
    select(vec![Annotation::Keep, Annotation::Confirm, Annotation::Allow, Annotation::None]).boxed()
}

fn others() -> BoxedStrategy<Others> {
    let foreign = || select(vec![Foreign::ConfigMap, Foreign::Token, Foreign::Lease, Foreign::Toy]);
    prop_oneof![
        4 => racing(),
        2 => (thing(), any::<bool>()).prop_map(|(thing, labelled)| Others::Recreate(thing, labelled)),
        1 => thing().prop_map(Others::Copy),
        1 => thing().prop_map(Others::RemoveCopy),
        2 => thing().prop_map(Others::RemoveFinalizers),
        2 => foreign().prop_map(Others::Create),
        1 => foreign().prop_map(Others::Remove),
    ]
    .boxed()
}

/// What somebody may do between two requests of the engine. No API has a precondition that nothing was put into a namespace.
fn racing() -> BoxedStrategy<Others> {
    prop_oneof![
        2 => thing().prop_map(Others::Edit),
        1 => thing().prop_map(Others::RemoveLabel),
        1 => thing().prop_map(Others::Delete),
        1 => select(vec![A, C, D, Data, Web]).prop_map(|thing| Others::Recreate(thing, true)),
        2 => (thing(), annotation()).prop_map(|(thing, annotation)| Others::Annotate(thing, annotation)),
        1 => thing().prop_map(Others::AddFinalizer),
    ]
    .boxed()
}

fn setting() -> BoxedStrategy<Setting> {
    use InventoryPolicy::*;
    let namespaces: Vec<Option<&'static [&'static str]>> =
        vec![None, Some(&["default", TEAM, SHOP]), Some(&[TEAM])];
    prop_oneof![
        2 => select(vec![0, 1, 3, 20]).prop_map(Setting::MaxPrune),
        1 => select(vec![0, 30, 100]).prop_map(Setting::MaxPrunePercent),
        1 => any::<bool>().prop_map(Setting::Prune),
        1 => any::<bool>().prop_map(Setting::PruneIrreplaceable),
        1 => select(vec!["default", TEAM]).prop_map(Setting::DefaultNamespace),
        1 => select(namespaces).prop_map(Setting::Namespaces),
        1 => select(vec![MustMatch, AdoptIfNoInventory, AdoptAll]).prop_map(Setting::Policy),
        1 => any::<bool>().prop_map(Setting::SelfHeal),
    ]
    .boxed()
}

fn loss() -> BoxedStrategy<Loss> {
    use Loss::*;
    prop_oneof![
        Just(Parent),
        Just(Members),
        Just(Both),
        (1..4_usize).prop_map(OldParent),
        (1..4_usize).prop_map(OldMembers),
        Just(CopyParent),
        Just(CopyMembers),
        Just(CopyBoth),
    ]
    .boxed()
}
