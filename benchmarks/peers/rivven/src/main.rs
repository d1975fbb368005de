//! Measures one kind of work of rivven-core and prints its figure: `rivven-benchmark WORK FOLDER RECORDS`.
//!
//! Values are those of the Python cases: 100 different bytes each. What is made before the clock starts is what a
//! caller has in hand: the value of a single append, the list of values of a batch.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use rivven_core::storage::{LogManager, SegmentSyncPolicy};
use rivven_core::wal::{GroupCommitWal, SyncMode, WalConfig};
use rivven_core::Message;

const SEGMENT_BYTES: u64 = 1 << 30;
const BATCH: usize = 1_000;
/// Records between two syncs: about 50 ms of appends.
const SYNC_EVERY: u64 = 50_000;
const WRITERS: usize = 64;
const POINTS: u64 = 2_000;

fn values(count: usize) -> Vec<Bytes> {
    (0..count).map(|i| Bytes::from(format!("{i:0100}"))).collect()
}

async fn open(folder: &Path, policy: SegmentSyncPolicy) -> LogManager {
    LogManager::with_sync_policy(folder.to_path_buf(), "bench", 0, SEGMENT_BYTES, policy)
        .await
        .expect("the log opens")
}

fn sync_what_is_due(log: &LogManager) {
    if let Some(file) = log.take_pending_sync() {
        file.sync_data().expect("a sync");
    }
}

/// Records a second, one by one, with a key of eight bytes where `keyed` says so.
async fn append(folder: &Path, count: usize, keyed: bool) -> f64 {
    let records = values(count);
    let keys: Vec<Bytes> = (0..count).map(|i| Bytes::from(format!("{i:08}"))).collect();
    let mut log = open(folder, SegmentSyncPolicy::EveryNWrites(SYNC_EVERY)).await;
    let start = Instant::now();
    for (i, (value, key)) in records.into_iter().zip(keys).enumerate() {
        let message = if keyed { Message::with_key(key, value) } else { Message::new(value) };
        log.append(i as u64, message).await.expect("an append");
        sync_what_is_due(&log);
    }
    log.flush().await.expect("a flush");
    count as f64 / start.elapsed().as_secs_f64()
}

/// Records a second in batches of 1,000.
async fn append_batch(folder: &Path, count: usize) -> f64 {
    let records = values(count);
    let mut log = open(folder, SegmentSyncPolicy::EveryNWrites(SYNC_EVERY)).await;
    let start = Instant::now();
    let mut offset = 0u64;
    for chunk in records.chunks(BATCH) {
        let batch = chunk
            .iter()
            .map(|value| {
                offset += 1;
                (offset - 1, Message::new(value.clone()))
            })
            .collect();
        log.append_batch(batch).await.expect("a batch");
        sync_what_is_due(&log);
    }
    log.flush().await.expect("a flush");
    count as f64 / start.elapsed().as_secs_f64()
}

/// Records a second of 64 tasks that each wait for the sync of their record, by rivven's write-ahead log.
async fn group_commit(folder: &Path, count: usize) -> f64 {
    std::fs::create_dir_all(folder).expect("a folder");
    let config = WalConfig { dir: folder.to_path_buf(), sync_mode: SyncMode::FsyncData, ..WalConfig::default() };
    let wal = GroupCommitWal::new(config).await.expect("the log opens");
    let value = values(1)[0].clone();
    let start = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (wal, value) = (wal.clone(), value.clone());
            tokio::spawn(async move {
                for _ in 0..count / WRITERS {
                    wal.write(value.clone()).await.expect("a write");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task");
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    wal.shutdown().await.expect("a clean end");
    rate
}

/// Rows a second of a whole read, and the median of point reads in microseconds.
async fn read(folder: &Path, count: usize) -> (f64, f64) {
    let mut log = open(folder, SegmentSyncPolicy::None).await;
    let mut offset = 0u64;
    for chunk in values(count).chunks(BATCH) {
        let first = offset;
        offset += chunk.len() as u64;
        let batch = (first..offset).zip(chunk.iter().cloned().map(Message::new)).collect();
        log.append_batch(batch).await.expect("a batch");
    }
    log.flush().await.expect("a flush");
    let start = Instant::now();
    let mut rows = 0usize;
    while rows < count {
        rows += log.read(rows as u64, 1 << 20).await.expect("a read").len();
    }
    let rate = rows as f64 / start.elapsed().as_secs_f64();
    let mut times = Vec::new();
    for i in 0..POINTS {
        let offset = (i * 2_654_435_761) % count as u64;
        let start = Instant::now();
        let found = log.read(offset, 1).await.expect("a read");
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert_eq!(found[0].offset, offset);
    }
    times.sort_by(f64::total_cmp);
    (rate, times[times.len() / 2])
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, work, folder, count] = arguments.as_slice() else { panic!("rivven-benchmark WORK FOLDER RECORDS") };
    let (folder, count) = (Path::new(folder), count.parse().expect("a number of records"));
    match work.as_str() {
        "append" => println!("{}", append(folder, count, false).await),
        "append-keyed" => println!("{}", append(folder, count, true).await),
        "append-batch" => println!("{}", append_batch(folder, count).await),
        "group-commit" => println!("{}", group_commit(folder, count).await),
        "read" => {
            let (rate, median) = read(folder, count).await;
            println!("{rate} {median}");
        }
        other => panic!("no such work: {other}"),
    }
}
