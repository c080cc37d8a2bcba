def sub(path, *pairs):
    s=open(path).read()
    for a,b in pairs:
        assert s.count(a)==1, (path, s.count(a), a)
        s=s.replace(a,b)
    open(path,'w').write(s)
sub('docs/spark.md',('''A run that finds a plan without a commit finishes that plan: same offsets, same files; what a killed one has left half written is
removed, and files of days that `compact --by-key` has emptied meanwhile (a LIST for each thousand files). A file shows when it is
whole. In S3 all''','''A run that finds a plan without a commit finishes that plan: the same offsets. Each attempt writes files of its own names, and no reader
sees them (`_….parquet.pending`) before a commit names them; the first commit counts. Then they get their names, and what other
attempts and killed runs have left of the plan is removed (a LIST for each thousand files). S3 cannot rename: there each file is
copied within the bucket and the pending one deleted, which needs `s3:GetObject`, `s3:PutObject` and `s3:DeleteObject` on the target.
An archive is safe to run twice at the same time, also around a `compact --by-key` of the topic: each record is there once, or not
yet. An older Firn refuses an archive that this one has written to; do not run both at once. In S3 all'''),
('''in properties that are committed with the files; of two runs at the same time one adds nothing and says so. (Do not start two of them
around a `compact --by-key` of the topic: they may find different records, under the same names of files.) An archive that
''','''in properties that are committed with the files; of two runs at the same time one adds nothing, says so and removes its files. Files of
a killed run are in no table: below a folder the next run removes them, elsewhere Iceberg's removal of orphan files does. An archive that
'''))
sub('docs/formats.md',('''JSON in UTF-8, each with `"version": 1`, intents with 2 (and read with 1); a reader refuses other versions.
''','''JSON in UTF-8, each with `"version": 1`; intents, plans and commits with 2 (and read with 1). A reader refuses other versions.
'''),
('''"ends": {partition: next offset}, "records", "files", "bad_files"}` |
''','''"ends": {partition: next offset}, "before": the same before this run, "records", "files", "bad_files", "with_values": whether bad records lie aside}`; version 1 has neither `before` nor `with_values`, and its files were there before it |
| `<target>/<topic>/_firn/<run>.shown` | put if absent once every file of a commit of version 2 has its name and other files of its plan are removed: `{}` |
'''),
('''date=<day>/<partition>-<start>-<end>[-<n>].parquet`, offsets in 20 digits; those of an
Iceberg table''','''date=<day>/<partition>-<start>-<end>-<attempt>[-<n>].parquet`, offsets in 20 digits, the attempt in
32 hexadecimal ones (none in version 1); until they are shown their names have `_` before and `.pending` behind. Those of an Iceberg table'''))
sub('docs/adr/0012-spark.md',('''the table's own FileIO. Arrow's S3 cannot ask for encryption, and shows what a failed writer had got to.
''','''the table's own FileIO. Arrow's S3 cannot ask for encryption, and shows what a failed writer had got to.

**Files are named by attempt, and pending until the commit.** Names by offsets alone made two attempts write the same files, which is right only
while both read the same records: `compact --by-key` between their plannings made one write over what the other had committed, with other
records, or of another size than an Iceberg table had been told. So each attempt has names of its own, the first commit counts, and in
a folder or bucket nothing shows before it: readers would see two attempts' records otherwise. A bucket cannot rename, so showing costs a
COPY and a DELETE for each file, 0.5 $ for 100,000 files. Not taken: a lease on the plan (a clock would decide); a listing that
readers have to know (they read folders).
'''))
sub('CHANGELOG.md',('''- New metrics:''','''- `firn job archive` is safe to run twice at the same time, also around a `compact --by-key`: files are named by attempt, and readers see none
  before its commit.
- New metrics:'''))
