//! The user's rights on device files.

use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;

use crate::doctor::checks::{self, Check};
use crate::doctor::finding::Finding;
use crate::doctor::linux::container::in_container;
use crate::doctor::system::System;

/// Why a file can't be opened, so that files with the same reason become one finding.
#[derive(PartialEq)]
struct Refusal {
    check: Check,
    gid: u32,
    why: String,
}

/// Opens each of these device files.
pub(super) fn examine(system: &System, files: &[String], findings: &mut Vec<Finding>) {
    let mut refused: Vec<(Refusal, Vec<&str>)> = Vec::new();
    for file in files {
        let Err(error) = system.open(file) else { continue };
        let refusal = refusal(system, file, &error);
        match refused.iter_mut().find(|(known, _)| *known == refusal) {
            Some((_, files)) => files.push(file),
            None => refused.push((refusal, vec![file])),
        }
    }
    for (Refusal { check, gid, why }, files) in refused {
        let group = group_name(system, gid).unwrap_or_else(|| gid.to_string());
        let what = format!("no access to {}: {why}", files.join(", "));
        findings.push(check.found(what, &[("group", &group), ("gid", &gid.to_string())]));
    }
}

fn refusal(system: &System, file: &str, error: &Error) -> Refusal {
    let fails = |gid| Refusal { check: checks::DEVICE_FAILS, gid, why: error.to_string() };
    let Ok(metadata) = fs::metadata(system.path(file)) else { return fails(0) };
    let gid = metadata.gid();
    if error.kind() != ErrorKind::PermissionDenied {
        return fails(gid);
    }
    let group = group_name(system, gid);
    let named = group.clone().unwrap_or_else(|| format!("number {gid}"));
    let group_may = metadata.mode() & 0o060 == 0o060 && gid != 0;
    // The kernel says EPERM if the device rules of a control group forbid it, and EACCES otherwise.
    let (check, why) = if error.raw_os_error() == Some(libc::EPERM) {
        (checks::DEVICE_BLOCKED, "the container's device rules forbid it".to_owned())
    } else if !group_may {
        let mode = metadata.mode() & 0o777;
        (checks::DEVICE_MODE, format!("it belongs to the group {named} with mode {mode:o}"))
    } else if system.groups().contains(&gid) {
        (checks::DEVICE_BLOCKED, format!("the user is in its group {named}, and it is refused all the same"))
    } else if in_container(system) {
        (checks::CONTAINER_GROUP, format!("the container's user is not in its group {named}"))
    } else if group.is_some() && is_listed(system, gid) {
        let why = format!("the user has joined its group {named}, but this session began before");
        (checks::LOGIN_AGAIN, why)
    } else {
        (checks::GROUP_MISSING, format!("the user is not in its group {named}"))
    };
    Refusal { check, gid, why }
}

/// The number of a file's group; `None` if there is no such file.
pub(super) fn group_of(system: &System, file: &str) -> Option<u32> {
    fs::metadata(system.path(file)).ok().map(|metadata| metadata.gid())
}

fn group_name(system: &System, gid: u32) -> Option<String> {
    Some(group(system, gid)?.0)
}

/// Name and members of a group.
fn group(system: &System, gid: u32) -> Option<(String, Vec<String>)> {
    system.text("etc/group").lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        let members = fields.next().unwrap_or_default().split(',').map(str::to_owned).collect();
        (number.parse() == Ok(gid)).then(|| (name.to_owned(), members))
    })
}

/// Whether `/etc/group` lists the user among the members.
fn is_listed(system: &System, gid: u32) -> bool {
    let (Some(user), Some((_, members))) = (system.user(), group(system, gid)) else { return false };
    system.text("etc/passwd").lines().any(|line| {
        let mut fields = line.split(':');
        let (Some(name), Some(number)) = (fields.next(), fields.nth(1)) else { return false };
        number.parse() == Ok(user) && members.iter().any(|member| member == name)
    })
}
