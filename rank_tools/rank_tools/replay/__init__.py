"""The replay: what each rank of a job did, line by line, as one page that opens from the disk.

``recorder`` is the only part that runs in the job's processes. ``events`` reads what they wrote and puts it
into an order of causes, ``page`` makes the page, ``still`` a picture. The job is started as by the doctor.
"""
