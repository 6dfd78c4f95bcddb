#!/bin/sh
tr -cs 'A-Za-z' '\n' < /app/story.txt | tr A-Z a-z | grep . | sort | uniq -c | sort -k1,1nr -k2,2 | head -n 5 \
  | awk '{print $1, $2}' > /app/top.txt
