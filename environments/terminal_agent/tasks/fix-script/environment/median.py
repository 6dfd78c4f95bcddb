import sys

numbers = [int(line) for line in open(sys.argv[1])]
numbers.sort()
print(numbers[len(numbers) // 2])
