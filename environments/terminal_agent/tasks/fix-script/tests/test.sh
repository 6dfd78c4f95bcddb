#!/bin/sh
# The script runs apart from what judges it: it sees its input, never what is expected.
failed=0
check() {
  printf -- "$1" > /tmp/input.txt
  printed=$(timeout 5 python3 /app/median.py /tmp/input.txt 2>/dev/null)
  code=$?
  if [ "$printed" != "$2" ] || [ "$code" != "$3" ]; then failed=1; fi
}
check '3\n1\n2\n' 2 0
check '4\n1\n3\n2\n' 2.5 0
check '\n10\n\n20\n' 15 0
check '7\n' 7 0
check '\n\n' none 1
check '-5\n-1\n0\n9\n' -0.5 0
if [ $failed = 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
