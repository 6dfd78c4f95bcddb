#!/bin/bash
cd /app
for log in api db web; do sed "s/^/$log /" logs/$log.log; done | sort -k2,2 -k1,1 > merged.log
count() { grep -c '^[^ ]* ERROR ' logs/$1.log; }
printf '{"api": %d, "db": %d, "web": %d}\n' "$(count api)" "$(count db)" "$(count web)" > errors.json
