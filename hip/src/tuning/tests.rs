use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hip-tuning-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn store(&self) -> TuningStore {
        TuningStore::new(Some(self.0.join("tuning")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn entry(problem: &str, microseconds: f64) -> TuningEntry {
    TuningEntry {
        device: "gfx1030, 36 compute units".into(),
        library: "MIOpen 3.5.1".into(),
        problem: problem.into(),
        solution: 89,
        workspace: 4096,
        microseconds,
    }
}

fn get(store: &TuningStore, entry: &TuningEntry) -> Option<TuningEntry> {
    store.get(&entry.device, &entry.library, &entry.problem)
}

#[test]
fn another_process_finds_what_was_kept() {
    let scratch = Scratch::new("kept");
    let (store, one) = (scratch.store(), entry("one", 5.0));
    assert_eq!(get(&store, &one), None);
    store.keep(&one);
    let other = scratch.store();
    assert_eq!(get(&other, &one), Some(one.clone()));
    for foreign in [
        TuningEntry { device: "gfx1031, 36 compute units".into(), ..one.clone() },
        TuningEntry { library: "MIOpen 3.5.2".into(), ..one.clone() },
        entry("two", 5.0),
    ] {
        assert_eq!(get(&other, &foreign), None, "{foreign:?}");
    }
    let TuningStats { hits, misses, stored, entries, .. } = other.stats();
    assert_eq!((hits, misses, stored, entries), (1, 3, 0, 1));
    // A later trial counts, even if it was slower.
    store.keep(&entry("one", 7.0));
    assert_eq!(get(&other, &one).unwrap().microseconds, 7.0);
    assert_eq!((store.stats().stored, store.stats().misses), (2, 1));
}

#[test]
fn entries_are_exported_imported_and_cleared() {
    let (from, to) = (Scratch::new("from"), Scratch::new("to"));
    let (store, other) = (from.store(), to.store());
    let file = from.0.join("exported.txt");
    for one in [entry("slower there", 5.0), entry("faster there", 5.0), entry("new", 5.0)] {
        store.keep(&one);
    }
    assert_eq!(store.export(&file), Ok(3));
    other.keep(&entry("slower there", 6.0));
    other.keep(&entry("faster there", 4.0));
    assert_eq!(other.import(&file), Ok(2));
    let times: Vec<_> = other.entries().into_iter().map(|one| (one.problem, one.microseconds)).collect();
    assert_eq!(times, [("faster there".into(), 4.0), ("new".into(), 5.0), ("slower there".into(), 5.0)]);
    assert_eq!(other.import(&file), Ok(0), "a second time");

    assert_eq!((other.clear(), other.entries(), other.stats().entries), (3, vec![], 0));
    assert_eq!(store.entries().len(), 3, "another folder");

    let whole = fs::read_to_string(&file).unwrap();
    for (text, found) in [
        (whole.replace("solution 89", "solution x"), "line 6: `solution x`"),
        (whole.replace("tuning 1", "tuning 9"), "line 1: `burn-rocm tuning 9`"),
        (String::new(), "line 1: `the end`"),
    ] {
        fs::write(&file, text).unwrap();
        let error = other.import(&file).unwrap_err().to_string();
        assert!(error.contains(found), "{error}");
    }
    assert!(matches!(other.import(&from.0.join("missing")), Err(Error::Invalid { .. })));
    assert!(matches!(other.export(&from.0.join("missing/file")), Err(Error::Invalid { .. })));
    assert_eq!(other.entries(), [], "nothing of a wrong file");
}

#[test]
fn damaged_files_are_removed_and_other_versions_are_left_alone() {
    let scratch = Scratch::new("damage");
    let (store, one) = (scratch.store(), entry("one", 5.0));
    store.keep(&one);
    let file = files(store.directory().unwrap()).remove(0);
    let whole = fs::read(&file).unwrap();
    let two = text([&one, &one]).into_bytes();
    let other_problem = text([&entry("other", 1.0)]).into_bytes();
    let huge = vec![b'x'; LARGEST as usize + 1];
    let mut damaged = 0;
    for bytes in [b"".as_slice(), &whole[..whole.len() - 1], b"\xff\xfe", &two, &huge] {
        fs::write(&file, bytes).unwrap();
        assert_eq!(get(&store, &one), None);
        damaged += 1;
        assert_eq!((store.stats().damaged, file.exists()), (damaged, false));
    }
    // The file of another problem under this name is no damage.
    fs::write(&file, other_problem).unwrap();
    assert_eq!((get(&store, &one), file.exists()), (None, true));

    fs::write(&file, String::from_utf8(whole).unwrap().replace("tuning 1", "tuning 2")).unwrap();
    assert_eq!((get(&store, &one), file.exists()), (None, true));
    let stats = store.stats();
    assert_eq!((stats.damaged, stats.refused), (damaged, 1));
    assert!(store.last_refusal().unwrap().to_string().contains("`burn-rocm tuning 2`"));
}

#[test]
fn leftovers_of_killed_processes_go() {
    let scratch = Scratch::new("leftovers");
    let store = scratch.store();
    store.keep(&entry("one", 5.0));
    let folder = store.directory().unwrap();
    let (old, new) = (folder.join("a.1.0.tmp"), folder.join("b.1.0.tmp"));
    for path in [&old, &new] {
        fs::write(path, "half").unwrap();
    }
    let hours = std::time::Duration::from_secs(2 * 3600);
    fs::File::options()
        .write(true)
        .open(&old)
        .unwrap()
        .set_modified(std::time::SystemTime::now() - hours)
        .unwrap();
    assert_eq!(store.stats().entries, 1);
    assert_eq!((old.exists(), new.exists()), (false, true), "the other may be written now");
}

#[test]
fn without_a_folder_there_is_nothing_and_imports_and_exports_say_so() {
    let scratch = Scratch::new("off");
    let store = TuningStore::new(None);
    store.keep(&entry("one", 5.0));
    assert_eq!((store.entries(), store.clear(), store.stats()), (vec![], 0, TuningStats::default()));
    fs::create_dir_all(&scratch.0).unwrap();
    let file = scratch.0.join("file");
    fs::write(&file, text([&entry("one", 5.0)])).unwrap();
    let error = store.import(&file).unwrap_err().to_string();
    assert!(error.contains("a store that is off"), "{error}");
    let exported = fs::read(&file).unwrap();
    let error = store.export(&file).unwrap_err();
    assert!(error.to_string().contains("a store that is off"), "{error}");
    assert!(matches!(error, Error::Config { .. }));

    // A folder that can't be made, because a file has its name.
    let blocked = TuningStore::new(Some(file.join("tuning")));
    blocked.keep(&entry("one", 5.0));
    assert_eq!(get(&blocked, &entry("one", 5.0)), None);
    assert_eq!(blocked.stats().refused, 1, "counted once");
    assert!(matches!(blocked.import(&file), Err(Error::Config { .. })));
    assert!(matches!(blocked.export(&file), Err(Error::Config { .. })));
    assert_eq!(fs::read(&file).unwrap(), exported, "another store's entries stay in the file");
}

#[cfg(unix)]
#[test]
fn a_folder_that_others_may_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("shared");
    let store = scratch.store();
    let folder = store.directory().unwrap().to_owned();
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    store.keep(&entry("one", 5.0));
    assert_eq!((store.stats().refused, files(&folder).len()), (1, 0));
    assert!(store.last_refusal().unwrap().to_string().contains("nobody else may write"));
}

#[test]
fn a_folder_does_not_grow_without_end() {
    let scratch = Scratch::new("full");
    let store = scratch.store();
    let known = entry("known", 5.0);
    store.keep(&known);
    let folder = store.directory().unwrap();
    for number in 1..MOST {
        fs::write(folder.join(format!("{number}.tuning")), "").unwrap();
    }
    // The first store has listed the folder already, and has room for some more.
    let store = scratch.store();
    assert!(matches!(store.put(&entry("one more", 5.0)), Err(Error::Config { .. })));
    store.put(&entry("known", 4.0)).unwrap();
    assert_eq!(get(&store, &known).unwrap().microseconds, 4.0);
}

#[test]
fn the_limit_is_kept_while_the_folder_fills() {
    let scratch = Scratch::new("fills");
    let store = scratch.store();
    store.keep(&entry("known", 5.0));
    let folder = store.directory().unwrap();
    for number in 1..MOST - 3 {
        fs::write(folder.join(format!("{number}.tuning")), "").unwrap();
    }
    let store = scratch.store();
    for number in 0..3 {
        assert_eq!(store.put(&entry(&number.to_string(), 5.0)), Ok(()), "{number}");
    }
    assert!(matches!(store.put(&entry("one more", 5.0)), Err(Error::Config { .. })));
}

#[test]
fn an_entry_that_a_library_refuses_is_removed_once() {
    let scratch = Scratch::new("removed");
    let store = scratch.store();
    let (one, two) = (entry("one", 5.0), entry("two", 5.0));
    store.keep(&one);
    store.keep(&two);
    for _ in 0..2 {
        store.refused(&one.device, &one.library, &one.problem);
    }
    assert_eq!((get(&store, &one), get(&store, &two)), (None, Some(two.clone())));
    assert_eq!(store.stats().outdated, 1);
}
